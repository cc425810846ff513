"""A model directory as text: which files count, and what is said about bad ones."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ModelError
from appliance.prompt.chat_format.model_text import ModelText
from tests.model_fixtures import CHAT_TEMPLATE, SPECIALS, tokenizer_json
from tests.unit.prompt.templates import LAST_IS_SPECIAL

NOW = datetime(2026, 1, 31)


def directory(path: Path, **files: Any) -> Path:
    known = {
        "tokenizer": tokenizer_json(),
        "tokenizer_config": {"chat_template": CHAT_TEMPLATE, "eos_token": {"content": SPECIALS[2]}},
        **files,
    }
    for name, content in known.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_the_stop_tokens_of_all_files_and_every_control_token_end_a_reply(tmp_path: Path) -> None:
    loaded = ModelText.load(
        directory(
            tmp_path,
            config={"eos_token_id": 0},
            generation_config={"eos_token_id": [2, 5, 99_999_999]},
        ),
        now=NOW,
    )
    assert loaded.stop_token_ids == (0, 1, 2, 5)
    assert loaded.chat_format.fallback_reason is None
    assert loaded.tokenizer.vocab_size == len(tokenizer_json()["model"]["vocab"])


def test_a_template_file_counts_more_than_the_settings(tmp_path: Path) -> None:
    directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    assert ModelText.load(tmp_path, now=NOW).chat_format.stop_strings == ("[user]",)


def test_the_default_of_several_named_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]
    loaded = ModelText.load(directory(tmp_path, tokenizer_config={"chat_template": named}), now=NOW)
    assert loaded.chat_format.fallback_reason is None


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_template_that_is_rendered_as_a_whole_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_whole: bool
) -> None:
    directory(tmp_path)
    template = LAST_IS_SPECIAL if is_whole else CHAT_TEMPLATE
    (tmp_path / "chat_template.jinja").write_text(template)
    with caplog.at_level("INFO", logger="appliance.prompt"):
        ModelText.load(tmp_path, now=NOW)
    told = [record.msg for record in caplog.records]
    assert told == (["whole_chat_format"] if is_whole else [])


def test_a_model_without_a_template_says_so_and_chats_all_the_same(tmp_path: Path) -> None:
    loaded = ModelText.load(directory(tmp_path, tokenizer_config={}), now=NOW)
    assert "no chat template" in (loaded.chat_format.fallback_reason or "")
    assert loaded.stop_token_ids == (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "cannot be read"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("tokenizer_config.json", b"[1]", "not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 7}', "no text"),
        ("generation_config.json", b"{", "not a JSON object"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("chat_template.jinja", b"x" * 1_100_000, "larger than"),
        ("chat_template.jinja", b"{% for %}", "line 1: template error"),
        ("chat_template.jinja", b"{{ 'x' * 1000000000 }}", "template error"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    directory(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError) as caught:
        ModelText.load(tmp_path, now=NOW)
    assert said in caught.value.message
    assert name in caught.value.message
