"""What an upgrade would restart, and how two versions are compared; the rest is in tests/box."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from appliance.cli import system_upgrade, system_version
from appliance.cli.main import main
from appliance.cli.system_upgrade import restarts_of
from appliance.cli.system_version import About, about, ask
from appliance.config import Config, parse_config

NEW = About(version="2", prefix="/opt/appliance/2", schema=7, engine="e", postgres="p")


def config(text: str = "") -> Config:
    required = '[model]\npath = "/m"\nname = "m"\n[paths]\ndata_dir = "/d"\nrun_dir = "/r"\n'
    return parse_config(required + text, base=Path("/"))


def restarted(old: About | None, text: str = "") -> list[str]:
    return [" ".join(command.words[2:]) for command in restarts_of(old, NEW, config(text))]


def test_what_is_the_same_in_both_versions_goes_on() -> None:
    replace = msgspec.structs.replace
    server, postgres = "appliance-server.service", "appliance-postgres.service"
    engine = f"{server} appliance-engine@0.service"
    assert restarted(replace(NEW, version="1")) == [server]
    assert restarted(replace(NEW, engine="x")) == [engine]
    assert restarted(replace(NEW, postgres="x")) == [postgres, server]
    assert restarted(None) == [postgres, engine]
    devices = '[engine]\ndevices = ["cuda:0", "cuda:1"]\n'
    assert restarted(None, devices)[1].endswith("engine@0.service appliance-engine@1.service")
    own = '[database]\nurl = "postgresql://chat@/chat?host=/run/postgresql"\n'
    assert restarted(None, own) == [engine]


@pytest.mark.parametrize(
    ("file", "engine", "postgres"),
    [
        ("engine/loop.py", True, False),
        ("model/families/llama.py", True, False),
        ("errors.py", True, False),
        ("dbops/cluster/initdb.py", False, True),
        ("server/app.py", False, False),
        ("store/ledger.py", False, False),
    ],
)
def test_a_part_differs_when_what_it_is_made_of_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, engine: bool, postgres: bool
) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "page", "drill")
    copy = tmp_path / "appliance"
    shutil.copytree(system_version.PACKAGE, copy, ignore=ignored)
    monkeypatch.setattr(system_version, "PACKAGE", copy)
    before = about()
    assert about() == before
    with (copy / file).open("a", encoding="utf-8") as opened:
        opened.write("# changed\n")
    after = about()
    assert (after.engine != before.engine, after.postgres != before.postgres) == (engine, postgres)


def test_a_version_that_is_gone_or_too_old_says_nothing_of_itself(tmp_path: Path) -> None:
    assert ask(tmp_path) is None
    program = tmp_path / "bin/appliance"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'usage: appliance'\nexit 2\n")
    program.chmod(0o755)
    assert ask(tmp_path) is None


def test_without_an_upgrade_there_is_nothing_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_upgrade, "PREVIOUS", tmp_path / "previous")
    assert main(["system", "rollback"]) == 2
    assert "no upgrade has left a version to go back to" in capsys.readouterr().err
    (tmp_path / "previous").symlink_to(tmp_path / "0.1")
    assert main(["system", "rollback", "--execute"]) == 2
    assert "install that version again" in capsys.readouterr().err
    monkeypatch.setattr(system_upgrade, "PROGRAM", tmp_path / "current")
    assert main(["system", "upgrade"]) == 2
    assert "no version is installed yet" in capsys.readouterr().err
