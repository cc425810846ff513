"""Contents of texts and plain variables are written as Jinja's own code writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import TemplateError
from appliance.prompt.templates import code
from appliance.prompt.templates.budget import budget
from appliance.prompt.templates.code import Text
from appliance.prompt.templates.faults import Place
from appliance.prompt.templates.yaml_text import documents

PLACE = Place(file="t.yaml", line=1, part="one")
VARIABLES = (
    "{{ a }}",
    "{{a}}",
    "{{- b }}",
    "{{ b -}}",
    "{{ a }}\n",
    "{{ nothing }}",
    "{{ range }}",
)
OTHERS = (
    "\n",
    "  ",
    "text",
    "{# note #}",
    "{{ '{{' }}",
    "{% raw %}{{ a }}{% endraw %}",
    "}}",
    "{{",
)
VALUES = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(st.text(max_size=2), max_size=2),
)


def rendered(content: str, values: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """The text, or what is said instead, and the names that the content uses."""
    (file,) = documents("content: " + json.dumps(content), PLACE)
    try:
        text = Text.compile(file.fields()["content"])
    except TemplateError as error:
        return error.message, frozenset()
    try:
        with budget() as left:
            return text.render(values, left), text.names
    except TemplateError as error:
        return error.message, text.names


@given(pieces=st.lists(st.sampled_from(VARIABLES + OTHERS), max_size=6), a=VALUES, b=VALUES)
@settings(max_examples=200, deadline=None)
def test_pieces_are_written_as_jinja_writes_them(pieces: list[str], a: Any, b: Any) -> None:
    content, values = "".join(pieces), {"a": a, "b": b}
    ours = rendered(content, values)
    with patch.object(code, "pieces_of", lambda source, reserved: None):
        assert ours == rendered(content, values)


@pytest.mark.parametrize("content", ["{{ a }}", "Hello, {{ a }}.\n{{ b }}", "{{ a }}{{ b }}"])
def test_plain_variables_need_no_compiler(content: str) -> None:
    with patch.object(code._Leaves, "_generate", side_effect=AssertionError("compiled")):
        assert "1" in rendered(content, {"a": 1, "b": "x"})[0]


def test_a_missing_value_is_said_with_its_line() -> None:
    # The content is quoted: all of it is on one line of the file.
    said, _ = rendered("one\ntwo {{ a }}\n{{ nothing }}", {"a": 1})
    assert said == "t.yaml, line 1, part `one`: template error: 'nothing' is undefined"


def test_what_is_written_is_counted() -> None:
    with patch("appliance.prompt.templates.budget.OUTPUT_CHARS_MAX", 10):
        assert "more than 10 characters" in rendered("{{ a }}{{ a }}", {"a": "sixsix"})[0]
