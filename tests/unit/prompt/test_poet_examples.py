"""The example templates of the prompt-poet package: the same parts here as there, read from its wheel."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from appliance.prompt.templates.poet import PoetTemplate
from tests import prompt_poet

HELPERS = [
    "canonicalize_user_name",
    "get_character_definition_messages",
    "maybe_inject_narrator",
    "pretruncate_messages",
    "raise_missing_context_data",
]
SECTIONS = (
    "bod_timestamp",
    "cai_message_pins",
    "cai_messages",
    "character_definition",
    "persona_definition",
    "reply_prompt",
)
DATA: dict[str, Any] = {
    "timestamp": "2026 01 31",
    "username": "Ana Lee",
    "character": {
        "participant__name": "Mira Owl",
        "title": "Keeper: of the light",
        "description": "Lives on an island; likes - tea # and 'birds'",
        "definition": 'Mira Owl: Welcome!\n\nAna: Hi: "there"\n{{user}} nods',
    },
    "persona_definition": "A sailor, a reader\nand a friend",
    "cai_messages": [
        {"author": "Ana Lee", "text": "Hello?\nAnyone: here", "is_pinned": True},
        {"author": "Mira Owl", "text": "Come in - mind the step"},
        {"author": "Ana Lee", "text": "{% raw %} #1", "is_pinned": True},
        {"author": "", "text": "'quoted' & \"double\"", "is_pinned": True},
    ],
    "reply_prompt": "Mira-Owl:",
}

# A section needs the settings that the whole template makes before it.
_ALONE = """\
{%% set settings = namespace() %%}
{%% from 'macros/global_settings.yml.j2' import init_settings %%}
{{ init_settings(settings) }}
{%% include 'sections/%s.yml.j2' %%}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples, with a template for each section alone."""
    copied = tmp_path_factory.mktemp("poet") / "examples"
    shutil.copytree(prompt_poet.examples(), copied)
    for section in SECTIONS:
        (copied / f"{section}.yml.j2").write_text(_ALONE % section)
    return copied


@pytest.fixture(scope="module")
def expected(folder: Path) -> Mapping[str, list[prompt_poet.Part]]:
    names = ["cai", *SECTIONS]
    answers = prompt_poet.parts_of([folder / f"{name}.yml.j2" for name in names], DATA, HELPERS)
    return dict(zip(names, answers, strict=True))


@pytest.fixture(scope="module")
def helpers() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "cai_helpers", prompt_poet.examples() / "cai_helpers.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks its module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cai_helpers", module)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cai", *SECTIONS])
def test_an_example_template_renders_to_the_same_parts(
    name: str,
    folder: Path,
    expected: Mapping[str, list[prompt_poet.Part]],
    helpers: ModuleType,
) -> None:
    messages = [helpers.CAIMessage(**message) for message in DATA["cai_messages"]]
    functions = {function: getattr(helpers, function) for function in HELPERS}
    values = {**DATA, **functions, "cai_messages": messages}
    parts = PoetTemplate.load(folder / f"{name}.yml.j2").render(values)
    found = [(p.name, p.role, p.content, p.truncation_priority) for p in parts]
    assert found == expected[name]
    assert found
