"""The prompt commands against a running demo, as its user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.box import Box


def prompt(box: Box, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "appliance.cli.main", "prompt", *words]
    command += ["--data-dir", str(box.data_dir)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert asked.returncode == code, asked.stderr
    return asked.stdout if code == 0 else asked.stderr


def test_a_character_is_published_labelled_edited_and_compared_while_chats_go_on(
    box: Box, tmp_path: Path
) -> None:
    told = prompt(box, "history", "gardener")
    assert "production (protected)" in told
    assert "the characters that came with the program" in told
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("id: ada\nname: Ada\nsystem: You are Ada, who counts birds.\n")
    second.write_text("id: ada\nname: Ada\nsystem: You are Ada, who counts ships.\n")
    version = prompt(box, "publish", str(first), "-m", "a first Ada").split()[1].rstrip(":")
    prompt(box, "label", "ada", "production", version, "-m", "let her talk", "--protect")
    opened = box.create_conversation(character="ada")
    turn = box.send(opened, "What do you count?", max_tokens=8)[0].data
    assert turn["prompt_version"].startswith(version)
    said = prompt(box, "diff", "ada@production", str(second))
    assert "in `system`: 1 live chat goes cold when moved" in said
    prompt(box, "publish", str(second), "-m", "she moved to the coast")
    new = prompt(box, "history", "ada").splitlines()[1].split()[0]
    refused = prompt(box, "label", "ada", "production", new, "-m", "go", code=2)
    assert "--confirm production" in refused
    prompt(box, "label", "ada", "production", new, "-m", "go", "--confirm", "production")
    later = box.create_conversation(character="ada")
    assert box.send(later, "And you?", max_tokens=8)[0].data["prompt_version"].startswith(new)
    again = box.send(opened, "Only those?", max_tokens=8)[0].data
    assert again["prompt_version"] == turn["prompt_version"]
    assert again["prefix_hit_tokens"] > turn["prompt_tokens"] / 2
    assert "2 conversations of ada" in prompt(box, "replay", f"ada@{version}", f"ada@{new}")
