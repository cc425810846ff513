"""What holds for every command: a reader that goes away, and a file that the user may not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

APPLIANCE = (sys.executable, "-m", "appliance.cli.main")
COMMANDS = (
    "--help",
    "system install --help",
    "system uninstall --root /tmp",
    "status --alert-rules",
    "db metrics --alert-rules --data-dir /srv/none",
    "doctor --config /srv/none.toml",
    "prompt lint prompts",
)


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_reader_has_gone_ends_quietly(command: str, is_buffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = dict(os.environ)
    environment.pop("PYTHONUNBUFFERED", None)
    if not is_buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    ended = subprocess.run(
        (*APPLIANCE, *command.split()),
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
    )
    os.close(writer)
    assert ended.stderr == b""
    # argparse itself passes over a help that nobody takes.
    assert ended.returncode == 141 or (command.endswith("--help") and ended.returncode == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(
    "command", ["status", "doctor", "db status", "cache stats", "experiment status x"]
)
def test_a_file_that_the_user_may_not_read_is_named_with_what_helps(
    tmp_path: Path, command: str
) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "appliance.toml"
    path.touch(mode=0o600)
    stranger = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    ended = subprocess.run(
        (*stranger, *APPLIANCE, *command.split(), "--config", str(path)),
        capture_output=True,
        text=True,
        check=False,
    )
    # A screen is as wide as it is.
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode in (1, 2)
    assert "Errno" not in said
    assert f"{path}: permission denied for nobody (uid 65534): run this as root (sudo)" in said
