"""The unit files by themselves: what systemd thinks of them, without booting one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.cli.system_files import Link, unit_files
from appliance.config import parse_config
from tests.box.system_folder import not_here

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
EXPOSURE_MAX = {"appliance-engine@.service": 3.0}
EXPOSURE_MAX_DEFAULT = 2.0


@pytest.fixture(autouse=True)
def has_analyzer() -> None:
    if shutil.which("systemd-analyze") is None:
        not_here("systemd-analyze is not installed here")


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units in a tree that has the program they start."""
    root = tmp_path_factory.mktemp("units")
    folder = root / "etc/systemd/system"
    shutil.copytree(UNITS, folder)
    program = root / "opt/appliance/current/bin/appliance"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shutil.copytree("/usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    return root


def test_systemd_finds_nothing_to_say_about_the_units(tree: Path) -> None:
    names = [
        path.name for path in sorted((tree / "etc/systemd/system").iterdir()) if path.is_file()
    ]
    paths = [name.replace("@.", "@0.") for name in names]
    said = analyze("verify", f"--root={tree}", "--recursive-errors=no", "--man=no", *paths)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_an_installation_links_what_systemd_would_enable(tree: Path) -> None:
    """The units alone say what starts with what, and the target asks for nothing beside them."""
    folder = tree / "etc/systemd/system"
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    names = [name.replace("@.", "@0.") for name in texts]
    enabled = [name for name in names if "[Install]" in texts[name.replace("@0.", "@.")]]
    words = ("systemctl", f"--root={tree}", "enable", *enabled)
    subprocess.run(words, check=True, capture_output=True)
    links = {
        path.relative_to(tree): path.readlink().name
        for path in folder.glob("*.wants/*")
        if path.is_symlink()
    }
    required = '[model]\npath = "/m"\nname = "m"\n[paths]\ndata_dir = "/d"\nrun_dir = "/r"\n'
    installed = {
        item.path.relative_to("/"): item.target.name
        for item in unit_files(texts, parse_config(required, base=Path("/")), has_gpu=False)
        if isinstance(item, Link)
    }
    assert len(installed) > 5
    assert installed == links
    assert "Wants=" not in texts["appliance.target"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_exposed_no_more_than_its_work_needs(name: str) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(UNITS / name))
    found = re.search(r"exposure level for \S+ (\d+\.\d)", said.stdout)
    assert found is not None, said.stdout + said.stderr
    print(f"{name}: exposure {found[1]} of 10")
    assert float(found[1]) < EXPOSURE_MAX.get(name, EXPOSURE_MAX_DEFAULT), said.stdout


NO_CODE = "MemoryDenyWriteExecute=yes"
FILTER = "SystemCallFilter=~@privileged"
TASK = {NO_CODE, FILTER}
WITH_CHOWN = {*TASK, "SystemCallFilter=@chown"}
OWN = {
    "appliance-server.service": {NO_CODE, "ProcSubset=pid", f"{FILTER} @resources"},
    "appliance-engine@.service": {FILTER},
    "appliance-postgres.service": WITH_CHOWN,
    "appliance-db-backup.service": WITH_CHOWN,
    "appliance-db-status.service": WITH_CHOWN,
}
"""What a unit has beside that which closes all; others are as `TASK`."""


def closing(name: str) -> list[str]:
    """The lines of a unit that close it, in their order: from its user on."""
    text = (UNITS / name).read_text(encoding="utf-8").partition("[Service]")[2]
    lines = text.partition("\n[")[0].splitlines()
    found = [line for line in lines[lines.index("User=appliance") :] if line]
    return [line for line in found if not line.startswith("#")]


def test_what_closes_one_service_closes_all() -> None:
    """The lines stand in each unit, so that each can be read, and copied, by itself."""
    common = {}
    for name in SERVICES:
        lines, own = closing(name), OWN.get(name, TASK)
        assert own <= set(lines), name
        common[name] = [line for line in lines if line not in own]
    server = common["appliance-server.service"]
    assert len(server) > 25
    assert common == dict.fromkeys(SERVICES, server)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_leaves_a_core_dump_that_would_hold_what_was_said(name: str) -> None:
    assert "LimitCORE=0" in (UNITS / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_that_a_service_runs_is_one_that_the_program_has(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (UNITS / name).read_text(encoding="utf-8")
    found = re.search(r"^ExecStart=/opt/appliance/current/bin/appliance (.*)$", text, re.MULTILINE)
    assert found is not None
    words = found[1].replace("%i", "0").split()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert "--config" in capsys.readouterr().out
