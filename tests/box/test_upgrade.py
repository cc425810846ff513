"""Another version takes the installed one's place under open chats, goes back, or fails and leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.store.migrate import load_migrations
from tests.box.booted import Box
from tests.box.chats import ENGINE, POSTGRES, SERVER, Stream, begin, is_ready, send, until
from tests.box.conftest import RELEASE

pytestmark = pytest.mark.slow

HOME = RELEASE.parent
PREVIOUS = f"{HOME}/previous"
SCHEMA = len(load_migrations())
FINE = f"-- usable-from: {SCHEMA}\nALTER TABLE appliance.conversations ADD COLUMN liked boolean;\n"
ONE_WAY = "ALTER TABLE appliance.conversations DROP COLUMN liked;\n"
BROKEN = "ALTER TABLE appliance.nowhere ADD COLUMN liked boolean;\n"


def make_version(box: Box, version: str, **migrations: str) -> Path:
    """A copy of the installed version under another number, with these migrations on top."""
    prefix = HOME / version
    box.run("cp", "-a", str(RELEASE), str(prefix))
    share = box.root / prefix.relative_to("/") / "share/appliance"
    (about,) = share.glob("*.dist-info")
    about = about.rename(share / f"appliance-{version}.dist-info")
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: appliance\nVersion: {version}\n", encoding="utf-8"
    )
    for number, (name, sql) in enumerate(migrations.items(), start=SCHEMA + 1):
        path = share / f"appliance/store/migrations/{number:04}_{name}.sql"
        path.write_text(sql, encoding="utf-8")
    return prefix


def change(box: Box, prefix: Path, file: str, text: str) -> None:
    """Put `text` at the end of a file of a version."""
    path = box.root / prefix.relative_to("/") / "share/appliance/appliance" / file
    with path.open("a", encoding="utf-8") as opened:
        opened.write(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def served(box: Box) -> tuple[str, int]:
    """The version that answers, and the schema it is on."""
    status = json.loads(box.run("appliance", "status", "--json").stdout)
    return status["server"]["version"], status["database"]["schema_version"]


def upgrade(box: Box, prefix: Path, *words: str, check: bool = True) -> str:
    """What the command says; with `check` it must have worked."""
    ended = box.run(f"{prefix}/bin/appliance", "system", "upgrade", *words, check=False)
    assert (ended.returncode == 0) == check, ended.stdout + ended.stderr + box.journal("-n", "40")
    return ended.stdout + ended.stderr


def test_an_upgrade_and_the_way_back_leave_chats_and_cache_as_they_were(box: Box) -> None:
    prefix = make_version(box, "9.1", liked=FINE)
    conversation, open_one = box.in_network(begin), box.in_network(begin)
    engine, server = box.main_pid(ENGINE), box.main_pid(SERVER)
    told = upgrade(box, prefix)
    assert f"migrate {SCHEMA + 1:04}_liked" in told
    assert f"link    /opt/appliance/current -> {prefix}" in told
    assert (box.main_pid(SERVER), served(box)) == (server, (RELEASE.name, SCHEMA))

    stream = Stream(open_one, "hello", max_tokens=3900, box=box)
    stream.start()
    stream.begun.wait()
    upgrade(box, prefix, "--execute")
    stream.join()
    assert stream.end in ("done", "error"), stream.told
    assert served(box) == ("9.1", SCHEMA + 1)
    assert box.main_pid(ENGINE) == engine, "an engine that is the same was restarted"
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done
    box.in_network(lambda: send(open_one, "and on"))
    assert "nothing to do" in upgrade(box, prefix, "--execute")
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"

    box.run("appliance", "system", "rollback", "--execute")
    assert served(box) == (RELEASE.name, SCHEMA + 1)
    assert box.main_pid(ENGINE) == engine
    done = box.in_network(lambda: send(conversation, "hello again"))
    assert done["usage"]["cached_tokens"] > 32, done


def test_an_installation_does_not_go_round_what_an_upgrade_tries(box: Box) -> None:
    prefix = make_version(box, "9.7", broken=BROKEN)
    server, before = box.main_pid(SERVER), served(box)
    for command, code in (("install", 2), ("check", 1)):
        words = (f"{prefix}/bin/appliance", "system", command)
        ended = box.run(*words, *(["--execute"] if command == "install" else []), check=False)
        assert ended.returncode == code
        assert "appliance system upgrade" in ended.stdout + ended.stderr
    assert "other-version" in box.run(f"{prefix}/bin/appliance", "doctor", check=False).stdout
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"
    assert (box.main_pid(SERVER), served(box)) == (server, before)


def test_a_migration_that_fails_leaves_the_old_version_running(box: Box) -> None:
    prefix = make_version(box, "9.2", liked=FINE, broken=BROKEN)
    server, before = box.main_pid(SERVER), served(box)
    told = upgrade(box, prefix, "--execute", check=False)
    assert f"migration {SCHEMA + 2:04}_broken failed" in told
    assert (box.main_pid(SERVER), served(box)) == (server, before)


def test_a_migration_without_a_way_back_wants_to_be_told_so(box: Box) -> None:
    prefix = make_version(box, "9.3", liked=FINE, one_way=ONE_WAY)
    server = box.main_pid(SERVER)
    assert "--no-way-back" in upgrade(box, prefix, "--execute", check=False)
    assert box.main_pid(SERVER) == server


def test_a_version_that_does_not_start_is_taken_back_by_itself(box: Box) -> None:
    prefix = make_version(box, "9.4", liked=FINE)
    change(box, prefix, "server/main.py", "\nraise ConfigError('this version cannot start')\n")
    conversation, before = box.in_network(begin), served(box)
    way_back = box.run("readlink", PREVIOUS, check=False).stdout
    told = upgrade(box, prefix, "--execute", check=False)
    assert "the old version serves again" in told
    assert served(box) == before
    assert box.run("readlink", PREVIOUS, check=False).stdout == way_back
    until(lambda: box.in_network(is_ready), "ready again")
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"


def test_an_upgrade_that_is_broken_off_is_put_back_and_one_that_is_killed_can_be(box: Box) -> None:
    prefix = make_version(box, "9.6", liked=FINE)
    change(box, prefix, "server/main.py", "\nimport time\ntime.sleep(500)\n")
    before = served(box)
    words = (f"{prefix}/bin/appliance", "system", "upgrade", "--execute")

    def broken_off(by: str) -> str:
        ended = box.run("timeout", f"--signal={by}", "8", *words, check=False)
        assert ended.returncode != 0, "it was over before it was broken off"
        return ended.stdout + ended.stderr

    told = broken_off("HUP")
    assert "the old version serves again" in told, told
    assert served(box) == before
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"
    broken_off("KILL")
    assert box.run("readlink", PREVIOUS).stdout.strip() == str(RELEASE)
    box.run("appliance", "system", "rollback", "--execute")
    assert served(box) == before


def test_an_engine_that_differs_is_restarted_and_finds_on_disk_what_fits(box: Box) -> None:
    prefix = make_version(box, "9.5", liked=FINE)
    change(box, prefix, "engine/main.py", "\nANOTHER = True\n")
    conversation, engine = box.in_network(begin), box.main_pid(ENGINE)
    assert "engines differ" in upgrade(box, prefix, "--execute")
    assert box.main_pid(ENGINE) != engine
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done


def test_a_version_in_use_is_not_removed_with_its_package(box: Box) -> None:
    refused = box.run("dpkg", "--remove", f"appliance-{RELEASE.name}", check=False)
    assert refused.returncode != 0
    assert "the previous version" in refused.stderr
    assert (box.root / RELEASE.relative_to("/") / "bin/appliance").exists()


def test_a_version_that_still_runs_is_not_removed_with_its_package(box: Box) -> None:
    """The last of this file: the package is gone afterwards."""
    # As after one more upgrade; PostgreSQL was the same in all of them, and none has restarted it.
    box.run("ln", "-sfn", f"{HOME}/9.1", PREVIOUS)
    pid = box.show(POSTGRES, "MainPID")
    refused = box.run("dpkg", "--remove", f"appliance-{RELEASE.name}", check=False)
    assert refused.returncode != 0
    assert f"process {pid} is still of appliance {RELEASE.name}" in refused.stderr
    assert (box.root / RELEASE.relative_to("/") / "bin/appliance").exists()
    box.run("systemctl", "restart", POSTGRES)
    box.run("dpkg", "--remove", f"appliance-{RELEASE.name}")
    assert not (box.root / RELEASE.relative_to("/") / "bin/appliance").exists()
    until(lambda: box.in_network(is_ready), "ready: another version serves")
