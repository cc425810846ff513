"""`appliance prompt lint`, `render` and `tokens` of characters, as files and as folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.server.main import PROMPTS_DIR

BOOK = '{"entries": [{"name": "deep", "keys": ["a"], "content": "@@depth 3\\nx"}]}'


@pytest.mark.parametrize(("placement", "warns"), [("as_written", True), ("frozen", False)])
def test_lore_that_moves_is_warned_of_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], placement: str, warns: bool
) -> None:
    folder = tmp_path / "keeper"
    folder.mkdir()
    character = f"id: keeper\nname: K\nsystem: x\nlore_placement: {placement}\n"
    (folder / "character.yaml").write_text(character)
    (folder / "lorebook.json").write_text(BOOK)
    assert main(["prompt", "lint", str(folder)]) == 0
    out, _ = capsys.readouterr()
    assert ("warning:" in out) == warns
    assert ("'deep' stands 3 messages deep" in out) == warns
    assert out.endswith("1 entry of lore\n")


@pytest.mark.parametrize("command", ["lint", "render"])
def test_a_characters_file_is_looked_at_with_its_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = tmp_path / "keeper.yaml"
    file.write_text("id: keeper\nname: K\nsystem: You keep the light.\n")
    assert main(["prompt", command, str(file)]) == 0
    out, _ = capsys.readouterr()
    assert ("You keep the light." in out) == (command == "render")
    assert ("the conversation's messages come here" in out) == (command == "render")
    data = tmp_path / "data.json"
    data.write_text('{"nobody": 1}')
    assert main(["prompt", "render", str(file), "--data", str(data)]) == 2
    assert "the data has 'nobody'" in capsys.readouterr().err
    file.write_text("id: keeper\nname: K\ntemplate: gone\n")
    assert main(["prompt", command, str(file)]) == 2
    assert "there is no 'gone'" in capsys.readouterr().err


def test_a_template_need_not_have_defaults_for_what_conversations_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keeper.yaml").write_text("id: keeper\nname: K\ntemplate: own\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/own.yaml").write_text(
        "name: own\ninputs: {persona: {sample: A sailor.}}\n---\n"
        "- {name: who, zone: persona, role: system, content: '{{ persona }}'}\n"
        "- {name: history, zone: history}\n"
    )
    assert main(["prompt", "render", str(tmp_path / "keeper.yaml")]) == 0
    assert "A sailor." in capsys.readouterr().out


def test_lint_of_a_character_says_all_it_finds_and_tries_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keeper.yaml"
    file.write_text("id: keeper\nname: K\ntemplate: own\n")
    (tmp_path / "templates").mkdir()
    own = tmp_path / "templates" / "own.yaml"
    own.write_text(
        "name: own\ninputs:\n  mood: {default: 1, type: number}\n  sky: {scope: turn, default: x}\n"
        "  gone: {default: x}\n---\n"
        "- {name: who, zone: persona, role: system, content: '{{ 6 // mood }} {{ sky }}'}\n"
        "- {name: history, zone: history}\n"
    )
    assert main(["prompt", "lint", str(file)]) == 2
    out, _ = capsys.readouterr()
    assert "error: " in out
    assert "`sky` may change with every turn" in out
    assert "warning: " in out
    assert "input `gone` is not used" in out
    own.write_text(own.read_text().replace("scope: turn, ", ""))
    assert main(["prompt", "lint", str(file)]) == 0
    data = tmp_path / "data.json"
    for given, code, told in (
        ('{"mood": 2}', 0, ""),
        ('{"mood": 0}', 2, "divides by zero"),
        ('{"moon": 2}', 2, "the data has 'moon'"),
    ):
        data.write_text(given)
        assert main(["prompt", "lint", str(file), "--data", str(data)]) == code
        assert told in capsys.readouterr().err


def test_lint_of_a_folder_says_what_is_wrong_with_each_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PROMPTS_DIR, tmp_path, dirs_exist_ok=True)
    assert main(["prompt", "lint", str(tmp_path)]) == 0
    good = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in good] == [
        str(tmp_path / path.name) for path in sorted(PROMPTS_DIR.iterdir())
    ]
    (tmp_path / "broken.yaml").write_text("id: broken\n")
    (tmp_path / "empty.yaml").write_text("")
    assert main(["prompt", "lint", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in good] == good
    assert [line for line in lines if line.startswith("error: ")] == [
        f"error: {tmp_path}/broken.yaml: name: is missing",
        f"error: {tmp_path}/empty.yaml: the file is empty",
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("render", "a folder of characters; name one of them"),
        ("tokens", "a folder of characters; name one of them"),
        ("publish", "a folder of characters; name one of them"),
        ("import", "a character; a folder of characters is expected"),
    ],
)
def test_a_command_that_gets_the_wrong_kind_says_which_it_wants(
    capsys: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    path = PROMPTS_DIR / "assistant.yaml" if command == "import" else PROMPTS_DIR
    why = ["-m", "x"] if command in ("publish", "import") else []
    assert main(["prompt", command, str(path), *why]) == 2
    assert f"appliance: {path}: {said}" in capsys.readouterr().err
