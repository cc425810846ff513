"""What `appliance system` would make of a system, in a tree that nobody boots."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from appliance.cli import system_apply, system_steps
from appliance.cli.main import main
from appliance.cli.service_states import ServiceState
from appliance.cli.system_config import EXAMPLE, config_text, read_meanings
from appliance.cli.system_files import UNIT_HEAD, File, unit_files
from appliance.cli.system_plan import Command, Remove, plan_uninstall
from appliance.config import Config, parse_config
from appliance.errors import ConfigError

SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (Path(__file__).parents[3] / "systemd").iterdir()
    if path.is_file()
}
REQUIRED = {
    "model.path": "/srv/models/m",
    "model.name": "m",
    "paths.data_dir": "/var/lib/appliance",
    "paths.run_dir": "/run/appliance",
}


def is_commented(line: str) -> bool:
    return line.startswith("#") and not line.startswith("# ") and line != "#"


def config(text: str = "") -> Config:
    required = '[model]\npath = "/m"\nname = "m"\n[paths]\ndata_dir = "/d"\nrun_dir = "/r"\n'
    return parse_config(required + text, base=Path("/"))


def settings() -> list[str]:
    return [
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(Config)
        for field in msgspec.structs.fields(section.type)
        if field.name != "engine_name"
    ]


def names(text: str, **found: bool) -> set[str]:
    wanted = unit_files(SOURCES, config(text), has_gpu=found.get("has_gpu", False))
    return {str(item.path.relative_to("/etc/systemd/system")) for item in wanted}


def file_text(text: str, name: str) -> str:
    (item,) = (
        item
        for item in unit_files(SOURCES, config(text), has_gpu=True)
        if isinstance(item, File) and str(item.path).endswith(name)
    )
    return item.text


def test_every_setting_is_in_the_file_with_its_meaning() -> None:
    text = config_text(REQUIRED, read_meanings())
    sections = tomllib.loads(text)
    assert sections["model"] == {"path": "/srv/models/m", "name": "m"}
    meanings = read_meanings()
    for name in settings():
        section, _, key = name.partition(".")
        body = text.partition(f"[{section}]\n")[2].partition("\n[")[0]
        assert f"\n#{key} =" in "\n" + body or name in REQUIRED, name
        assert name in meanings, f"docs/settings.md has no row for {name}"


def test_the_defaults_that_are_shown_are_the_defaults() -> None:
    shown = [
        line.removeprefix("#") if is_commented(line) and not line.endswith(EXAMPLE) else line
        for line in config_text(REQUIRED, {}).splitlines()
    ]
    taken = parse_config("\n".join(shown), base=Path("/"))
    assert taken == parse_config(config_text(REQUIRED, {}), base=Path("/"))


def test_a_setting_is_valid_as_soon_as_its_comment_sign_is_taken_away() -> None:
    lines = config_text(REQUIRED, read_meanings()).splitlines()
    as_is = parse_config("\n".join(lines), base=Path("/"))
    tried = []
    section = ""
    for number, line in enumerate(lines):
        section = line.strip("[]") if line.startswith("[") else section
        if is_commented(line):
            alone = [*lines[:number], line.removeprefix("#"), *lines[number + 1 :]]
            taken = parse_config("\n".join(alone), base=Path("/"))
            assert (taken != as_is) == line.endswith(EXAMPLE), line
            tried.append(f"{section}.{line.removeprefix('#').partition(' ')[0]}")
    assert tried == [name for name in settings() if name not in REQUIRED]


def test_the_file_says_what_to_do_after_a_change_and_where_the_docs_are() -> None:
    head = config_text(REQUIRED, {}).partition("\n[")[0]
    for command in ("appliance doctor", "appliance system install --execute"):
        assert command in head
    assert "systemctl restart appliance.target" in head
    docs = re.findall(r"/\S+\.md", head)
    assert len(docs) == 2
    assert all(Path(path).is_file() for path in docs)


@pytest.mark.parametrize("is_for_this_system", [True, False])
def test_a_model_that_services_could_not_serve_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_for_this_system: bool
) -> None:
    # Without --execute nothing is changed.
    root = Path("/") if is_for_this_system else tmp_path
    empty = tmp_path / "srv/models/empty"
    empty.mkdir(parents=True)
    told = "/srv/models/empty"
    wrong = [(told, "config.json")]
    if is_for_this_system:
        wrong = [
            # Only this test's own user enters pytest's folders.
            (f"{tmp_path}{told}", "appliance (uid"),
            ("/srv/models/none", "does not exist"),
            ("/etc/hostname", "not a model directory"),
        ]
    for path, why in wrong:
        assert main(["system", "install", "--root", str(root), "--model", path]) == 2
        said = capsys.readouterr().err
        assert said.startswith("appliance: --model: ")
        assert path in said
        assert why in said


@pytest.mark.parametrize("name", ["", " "])
def test_a_blank_name_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    install = ["system", "install", "--root", str(tmp_path), "--model", "/srv/models/m"]
    assert main([*install, "--name", name]) == 2
    assert capsys.readouterr().err.startswith(f"appliance: --name {name!r}: ")


def test_a_dry_run_says_every_file_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system", "install", "--root", str(tmp_path), "--model", "/srv/models/m"]
    assert main(words) == 0
    said = capsys.readouterr()
    for name in ("appliance-server.service", "sysusers.d/appliance.conf", "appliance.toml 0640"):
        assert name in said.out
    assert "nothing was changed" in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_installation_is_made_once_and_checked_and_taken_away_without_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    install = ["system", "install", *where, "--execute"]
    assert main([*install, "--model", "/srv/models/m"]) == 0
    toml = tmp_path / "etc/appliance/appliance.toml"
    assert toml.stat().st_mode & 0o777 == 0o640
    toml.write_text(toml.read_text() + "# my own line\n")
    units = tmp_path / "etc/systemd/system"
    (units / "appliance-server.service").write_text("changed")
    mine = units / "appliance-server.service.d/override.conf"
    mine.parent.mkdir()
    mine.write_text("[Service]\n")
    capsys.readouterr()
    assert main(["system", "check", *where]) == 1
    assert "appliance-server.service 0644 root:root (differs)" in capsys.readouterr().out
    assert main(install) == 0
    capsys.readouterr()
    assert main(["system", "check", *where]) == 0
    assert "my own line" in toml.read_text()
    assert mine.exists()
    theirs = {
        "appliance-report.timer": "[Unit]\nDescription=Our weekly report\n[Timer]\nOnCalendar=weekly\n",
        "appliance-report.service": "[Service]\nExecStart=/usr/local/bin/report\n",
        "appliance-report.service.d/network.conf": "[Service]\nPrivateNetwork=yes\n",
        # Begun as a copy of one of ours.
        "appliance-canary.service": (units / "appliance-server.service").read_text(),
    }
    for name, text in theirs.items():
        (units / name).parent.mkdir(exist_ok=True)
        (units / name).write_text(text)
    enabled = units / "timers.target.wants/appliance-report.timer"
    enabled.parent.mkdir()
    enabled.symlink_to("/etc/systemd/system/appliance-report.timer")
    # Of a version before this one, which has no such unit.
    retired = units / "appliance-old.timer"
    retired.write_text(
        f"{UNIT_HEAD.format(name=retired.name)}\n[Unit]\nDescription=what once was\n"
    )
    stale = units / "appliance.target.wants/appliance-old.timer"
    stale.symlink_to("/etc/systemd/system/appliance-old.timer")
    assert main(install) == 0
    assert not retired.exists()
    assert not stale.is_symlink()
    mine_and_theirs = {mine, enabled, *(units / name for name in theirs)}
    assert all(path.is_file() or path.is_symlink() for path in mine_and_theirs)
    chats = tmp_path / "var/lib/appliance/postgres"
    chats.mkdir(parents=True)
    assert main(["system", "uninstall", *where, "--execute"]) == 0
    assert chats.is_dir()
    assert toml.exists()
    left = {path for path in units.rglob("*") if path.is_file() or path.is_symlink()}
    assert left == mine_and_theirs
    uninstall = ["system", "uninstall", *where, "--execute", "--delete"]
    assert main([*uninstall, "/var/lib/appliance"]) == 0
    assert not chats.exists()
    assert main([*uninstall, "/srv"]) == 2
    assert "expected one of /var/lib/appliance" in capsys.readouterr().err


def test_there_is_an_engine_for_each_device_and_a_gpu_s_nodes_only_where_there_is_one() -> None:
    text = '[engine]\ndevices = ["cuda:0", "cuda:1"]\n'
    wants = {name for name in names(text, has_gpu=True) if "wants/appliance-engine" in name}
    assert wants == {f"appliance.target.wants/appliance-engine@{n}.service" for n in (0, 1)}
    assert "appliance-engine@.service.d/gpu.conf" in names(text, has_gpu=True)
    assert "appliance-engine@.service.d/gpu.conf" not in names("", has_gpu=False)
    assert "appliance-engine@.service.d/gpu.conf" not in names(
        '[engine]\ndevice = "cpu"', has_gpu=True
    )


def test_a_database_of_one_s_own_takes_the_place_of_the_embedded_one() -> None:
    unix = '[database]\nurl = "postgresql://chat@/chat?host=/run/postgresql"\n'
    network = '[database]\nurl = "postgresql://chat@db.example/chat"\n'
    assert "appliance-postgres.service" in names("")
    for text in (unix, network):
        assert not any("appliance-postgres" in name for name in names(text))
    assert "appliance-server.service.d/network.conf" not in names(unix)
    assert "appliance-server.service.d/network.conf" in names(network)
    assert "PrivateNetwork=no" in file_text(network, "server.service.d/network.conf")
    assert "appliance-experiment-check.service.d/network.conf" in names(network)
    # No pooler by transaction gives an operator's look the session that it needs.
    assert {"appliance-db-status.timer", "appliance-db-status.service"} <= names(network)
    pooled = names(f'{network}pooling = "transaction"\n')
    assert not any("appliance-db-status" in name for name in pooled)
    assert names(network) - pooled == {
        "appliance-db-status.service",
        "appliance-db-status.service.d/network.conf",
        "appliance-db-status.timer",
        "appliance.target.wants/appliance-db-status.timer",
    }
    traces = '[traces]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n'
    for unit in ("server", "engine@"):
        assert f"appliance-{unit}.service.d/network.conf" in names(traces)
    assert "appliance-engine@.service.d/network.conf" not in names(network)


def test_a_task_that_the_settings_take_out_leaves_no_word_for_the_metrics(tmp_path: Path) -> None:
    where = ["--root", str(tmp_path)]
    install = ["system", "install", *where, "--execute"]
    assert main([*install, "--model", "/srv/models/m"]) == 0
    state = tmp_path / "var/lib/appliance"
    state.mkdir(parents=True)
    kept = {"task-cache-audit.json", "LOCK"}
    for name in (*kept, "task-db-status.json", "task-db-backup.json", "db-metrics.prom"):
        (state / name).touch()
    toml = tmp_path / "etc/appliance/appliance.toml"
    url = 'url = "postgresql://chat@db.example/chat"\npooling = "transaction"'
    toml.write_text(toml.read_text().replace("\n[database]\n", f"\n[database]\n{url}\n"))
    assert main(install) == 0
    assert {path.name for path in state.iterdir()} == kept
    assert main(["system", "check", *where]) == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_an_installation_has_the_database_that_a_secret_names(
    tmp_path: Path, is_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    install = ["system", "install", *where, "--execute"]
    secrets = tmp_path / "etc/appliance/credentials"
    units = tmp_path / "etc/systemd/system"

    def made() -> set[str]:
        return {str(path.relative_to(units)) for path in units.rglob("*") if not path.is_dir()}

    if not is_first:
        assert main([*install, "--model", "/srv/models/m"]) == 0
        assert "appliance-postgres.service" in made()
    secrets.mkdir(parents=True)
    (secrets / "database_url").write_text("postgresql://chat:secret@db.example/chat\n")
    if not is_first:
        assert main(["system", "check", *where]) == 1
    assert main([*install, *(["--model", "/srv/models/m"] if is_first else [])]) == 0
    assert not [name for name in made() if "appliance-postgres" in name or "db-backup" in name]
    assert "appliance-server.service.d/network.conf" in made()
    assert main(["system", "check", *where]) == 0
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err


@pytest.mark.parametrize(("device", "opens"), [("cuda:0", True), ("auto", False), ("cpu", False)])
def test_a_tree_for_another_system_opens_the_gpus_that_its_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, opens: bool
) -> None:
    # What the building machine has says nothing of the one that boots the tree.
    there = tmp_path / "nvidiactl"
    monkeypatch.setattr("appliance.cli.system_steps.GPU_CONTROL", there)
    for has_gpu in (False, True):
        root = tmp_path / f"{has_gpu}"
        install = ["system", "install", "--root", str(root), "--execute"]
        assert main([*install, "--model", "/srv/models/m"]) == 0
        toml = root / "etc/appliance/appliance.toml"
        toml.write_text(toml.read_text().replace('#device = "auto"', f'device = "{device}"'))
        assert main(install) == 0
        made = root / "etc/systemd/system/appliance-engine@.service.d/gpu.conf"
        assert made.exists() == opens
        there.touch()


def test_what_the_settings_take_out_is_stopped_before_its_unit_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    install = ["system", "install", *where, "--execute"]
    assert main([*install, "--model", "/srv/models/m"]) == 0
    toml = tmp_path / "etc/appliance/appliance.toml"
    text = toml.read_text()

    def stopped(old: str, new: str) -> list[list[str]]:
        toml.write_text(text.replace(old, new))
        capsys.readouterr()
        assert main(install) == 0
        lines = capsys.readouterr().out.splitlines()
        stops = [line.split()[3:] for line in lines if line.startswith("run     systemctl stop")]
        removals = [number for number, line in enumerate(lines) if line.startswith("remove")]
        stopping = [number for number, line in enumerate(lines) if "systemctl stop" in line]
        assert not stops or max(stopping) < min(removals)
        return [[word for word in words if word.startswith("appliance-")] for words in stops]

    assert stopped("#devices = []", 'devices = ["cuda:0", "cuda:1", "cpu"]') == []
    one, two = (f"appliance-engine@{number}.service" for number in (1, 2))
    assert stopped("#devices = []", 'devices = ["cuda:0"]') == [[one, two]]
    url = "postgresql://chat@/chat?host=/run/postgresql"
    (units,) = stopped('#url = "postgresql://chat@db.example/chat"', f'url = "{url}"')
    # The server too: what it had still to write is for the database that goes.
    assert {"appliance-postgres.service", "appliance-server.service"} < set(units)


def test_an_engine_that_runs_without_a_place_in_the_settings_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    active, away = ServiceState(active="activating"), ServiceState(active="inactive")
    states = {"appliance-engine@0.service": active, "appliance-engine@1.service": active}
    states |= {"appliance-engine@2.service": away, "appliance-server.service": active}
    monkeypatch.setattr(system_steps, "services", lambda: states)
    assert list(system_steps._left_running(config())) == ["appliance-engine@1.service"]


@pytest.mark.parametrize("is_link", [True, False])
def test_a_command_that_is_the_operator_s_own_is_neither_replaced_nor_removed(
    tmp_path: Path, is_link: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    install = ["system", "install", *where, "--execute", "--model", "/srv/models/m"]
    command = tmp_path / "usr/local/bin/appliance"
    command.parent.mkdir(parents=True)
    if is_link:
        command.symlink_to("/srv/own/appliance")
    else:
        command.write_text("#!/bin/sh\n")
    assert main(install) == 2
    assert "/usr/local/bin/appliance" in capsys.readouterr().err
    assert not (tmp_path / "etc").exists()
    assert main(["system", "uninstall", *where, "--execute"]) == 0
    assert command.is_symlink() == is_link
    assert is_link or command.exists()


def test_settings_that_are_a_link_are_kept_and_called_as_they_should_be(tmp_path: Path) -> None:
    where = ["--root", str(tmp_path)]
    assert main(["system", "install", *where, "--execute", "--model", "/srv/models/m"]) == 0
    toml = tmp_path / "etc/appliance/appliance.toml"
    elsewhere = tmp_path / "etc/settings.toml"
    toml.rename(elsewhere)
    toml.symlink_to("../settings.toml")
    assert main(["system", "check", *where]) == 0
    elsewhere.chmod(0o644)
    assert main(["system", "install", *where, "--execute"]) == 0
    assert (toml.is_symlink(), elsewhere.stat().st_mode & 0o777) == (True, 0o640)


@pytest.mark.parametrize(
    "words", [["--model", "/srv/\udcff"], ["--name", "\udcff"], ["--root", "/\udcff"]]
)
def test_an_option_that_is_no_text_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path), "--model", "/srv/models/m"]
    with pytest.raises(SystemExit):
        main(["system", "install", *where, *words])
    assert words[0] in capsys.readouterr().err


def test_a_name_is_written_as_it_was_said(tmp_path: Path) -> None:
    name = 'DEL \x7f " \\ \t \u2028'
    install = ["system", "install", "--root", str(tmp_path), "--model", "/srv/m", "--name", name]
    assert main([*install, "--execute"]) == 0
    written = tomllib.loads((tmp_path / "etc/appliance/appliance.toml").read_text())
    assert written["model"]["name"] == name


@pytest.mark.parametrize("root", ["/", "//", "/.", "/tmp/..", "/proc/self/root"])
def test_the_root_folder_is_this_system_however_it_is_written(root: str) -> None:
    assert system_apply.tree(Path(root)) == system_apply.ROOT


def test_another_version_s_place_is_not_taken_by_an_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def current(target: Path | None) -> None:
        monkeypatch.setattr(system_steps, "link_target", lambda _: target)

    monkeypatch.setattr(system_apply, "below", lambda root, path: Path(__file__))
    current(Path("/opt/appliance/0"))
    for command in ("install", "check"):
        assert main(["system", command]) in (1, 2)
        told = capsys.readouterr()
        assert "/opt/appliance/0" in told.out + told.err
        assert "system upgrade" in told.out + told.err
    current(Path(sys.prefix))
    assert system_steps.not_this_version(system_apply.ROOT) is None
    current(None)
    assert system_steps.not_this_version(system_apply.ROOT) is None


def test_an_uninstallation_waits_for_every_part_before_it_takes_anything() -> None:
    installed = [item.path for item in unit_files(SOURCES, config(), has_gpu=True)]
    first, second, *rest = plan_uninstall(installed, [Path("/var/lib/appliance")], is_running=True)
    assert isinstance(first, Command)
    assert isinstance(second, Command)
    assert second.words == ("systemctl", "reset-failed", *(f"{unit}*" for unit in first.words[2:]))
    # systemctl(1): a stop waits for the units that it names; `*` stands for engines that run.
    assert set(first.words) == {"systemctl", "stop", *(name.replace("@", "@*") for name in SOURCES)}
    assert rest[-1] == Remove(path=Path("/var/lib/appliance"), is_tree=True)


def test_the_socket_is_closed_to_other_machines_unless_the_settings_open_it() -> None:
    key = '[[server.api_keys]]\ntenant = "a"\nsha256 = "' + "a" * 64 + '"\n'
    closed = file_text("[server]\nport = 9000\n", "listen.conf")
    assert "ListenStream=127.0.0.1:9000" in closed
    assert "IPAddress" not in closed
    for host in ("localhost", "app.localhost", "LOCALHOST."):
        named = file_text(f'[server]\nhost = "{host}"\n', "listen.conf")
        assert "ListenStream=127.0.0.1:8400" in named
        assert "IPAddress" not in named
    # It ends alike, and is anybody's.
    refused = [f'host = "notlocalhost"\n{key}', f'host = "db.example"\n{key}', f'host = ""\n{key}']
    for settings in ("port = 0\n", *refused):
        with pytest.raises(ConfigError, match=r"^server\.(port|host): "):
            file_text(f"[server]\n{settings}", "listen.conf")
    opened = file_text('[server]\nhost = "::"\n' + key, "listen.conf")
    assert "ListenStream=[::]:8400" in opened
    assert "IPAddressDeny=\n" in opened
