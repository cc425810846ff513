"""The `appliance model` command as a process of its own, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.model_fixtures import write_tiny_llama


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "appliance.cli.main", "model", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_model_is_compared_from_the_command_line_and_a_lost_text_is_named(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 20)
    compared = run("eval", directory, "--text", text, "--json")
    assert (compared.returncode, compared.stderr) == (0, "")
    assert 0 < json.loads(compared.stdout)["top1"] <= 1
    refused = run("eval", directory, "--text", tmp_path / "none")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == [
        f"appliance: {tmp_path / 'none'}: cannot be read: No such file or directory"
    ]
