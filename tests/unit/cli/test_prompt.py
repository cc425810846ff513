"""`appliance prompt`: what is printed, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli.main import main
from tests.model_fixtures import tokenizer_json

TEMPLATE = """\
name: demo
inputs:
  character: {type: map, scope: character, sample: {name: Mira, system: You are Mira.}}
  user_name: {sample: "Ana\\e[31m"}
  weather: {scope: turn, default: fair}
---
- name: system
  zone: character
  role: system
  sections:
  - {name: who, content: "{{ character.system }} "}
  - {name: how, content: Be kind.}
- {name: persona, zone: persona, role: system, content: "{{ user_name }}"}
- {name: history, zone: history}
- {name: sky, zone: volatile, role: system, truncation_priority: 2, content: "It is {{ weather }}."}
"""
POET = "- name: p\n  role: system\n  content: |\n    Hi {{ name }}.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TEMPLATE)
    return path


def run(*arguments: object) -> int:
    return main(["prompt", *map(str, arguments)])


def data(folder: Path, **values: object) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(values))
    return path


def test_lint_of_a_good_template_exits_with_zero(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lint", file) == 0
    assert "3 parts, version " in capsys.readouterr().out


def test_lint_of_a_costly_template_exits_with_two(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TEMPLATE.replace("{{ user_name }}", "{{ user_name }} {{ weather }}"))
    assert run("lint", file) == 2
    assert "error: " in capsys.readouterr().out
    file.write_text(TEMPLATE.replace("zone: history", "zone: hist"))
    assert run("lint", file) == 2
    assert "demo.yaml, line 14, part `history`" in capsys.readouterr().err


def test_render_prints_the_parts_with_sample_data_or_given_data(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("render", file) == 0
    out = capsys.readouterr().out
    assert "--- system (system, zone character, public) ---\nYou are Mira. Be kind.\n" in out
    assert "--- persona (system, zone persona, private) ---\nAna\\x1b[31m\n" in out
    assert "messages come here" in out
    assert "may change each turn, truncation priority 2) ---\nIt is fair.\n" in out
    assert run("render", file, "--data", data(tmp_path, weather="foul", user_name="Bo")) == 0
    out = capsys.readouterr().out
    assert "\nIt is foul.\n" in out
    assert "\nBo\n" in out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ('{"wether": "x"}', "no such input"),
        ('{"weather": 1}', "input `weather`: expected text"),
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
    ],
)
def test_bad_data_exits_with_two_and_is_named(
    file: Path, tmp_path: Path, values: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(values)
    assert run("render", file, "--data", tmp_path / "bad.json") == 2
    assert said in capsys.readouterr().err
    assert run("render", file, "--data", tmp_path / "gone.json") == 2
    assert run("render", tmp_path / "gone.yaml") == 2


def test_tokens_counts_each_part_and_section_with_a_models_tokenizer(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    assert run("tokens", file, "--model", model) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = {line.split()[1]: int(line.split()[0]) for line in lines if line.split()[0].isdigit()}
    assert counts["system"] + counts["persona"] + counts["sky"] == counts["in"]
    assert counts["system"] > counts["who"] + counts["how"]
    assert run("tokens", file, "--model", model, "--limit", counts["in"]) == 0
    capsys.readouterr()
    # A part that may be dropped is not counted; P10: found before any chat is.
    assert run("tokens", file, "--model", model, "--limit", counts["in"] - counts["sky"] - 1) == 2
    said = capsys.readouterr().out.splitlines()[-1]
    assert f"system {counts['system']}, persona {counts['persona']}" in said
    assert run("tokens", file, "--model", tmp_path) == 2
    assert "--model FOLDER" in capsys.readouterr().err


def test_a_whole_file_template_is_known_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.yml.j2"
    path.write_text(POET)
    assert run("lint", path) == 0
    assert run("render", path) == 2
    assert "'name' is undefined" in capsys.readouterr().err
    assert run("lint", path, "--data", data(tmp_path, name="- x: y")) == 0
    assert run("render", path, "--data", data(tmp_path, name="- x: y")) == 0
    assert "\nHi - x: y.\n" in capsys.readouterr().out
