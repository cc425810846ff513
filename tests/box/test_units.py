"""The unit files by themselves: what systemd thinks of them, without booting one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.cli.main import main

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
EXPOSURE_MAX = {"appliance-engine@.service": 3.0}
EXPOSURE_MAX_DEFAULT = 2.0

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here"
)


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


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_exposed_no_more_than_its_work_needs(name: str) -> None:
    said = analyze("security", "--offline=true", "--no-pager", str(UNITS / name))
    found = re.search(r"exposure level for \S+ (\d+\.\d)", said.stdout)
    assert found is not None, said.stdout + said.stderr
    print(f"{name}: exposure {found[1]} of 10")
    assert float(found[1]) < EXPOSURE_MAX.get(name, EXPOSURE_MAX_DEFAULT), said.stdout


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
