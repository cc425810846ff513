"""However YAML writes a piece of code, what is wrong with it is told with its line of the file."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import TemplateError
from appliance.prompt.templates.compiling import template_of
from tests.unit.prompt.template_files import FROZEN

FRONT = "name: x\ninputs:\n  a: {default: b}\n  l: {type: list, default: [b]}\n---\n"
PART = "- name: history\n  zone: history\n- name: p\n  zone: volatile\n  role: system\n"
BEFORE = FRONT + PART
FIRST = BEFORE.count("\n") + 1
"""The line of the file that the part's next key is on."""

BAD = (
    "{{ a.b.c }}",
    "{{ 1 // 0 }}",
    "{{ a | nothing }}",
    "{% if %}",
    "{{ }}",
    "{% if a.b.c %}x{% endif %}",
)


def told(source: str) -> int:
    """The line that an error names."""
    with pytest.raises(TemplateError) as caught:
        template_of(source, "f").render({}, FROZEN)
    match = re.match(r"f, line ([0-9]+), part `p`: ", caught.value.message)
    assert match is not None, caught.value.message
    return int(match[1])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("  content: x BAD\n", 0),
        ("  content: one\n    two\n    {{ a }} BAD\n    three\n", 2),
        ("  content: >\n    one\n    two {{ a }}\n    BAD three\n    four\n", 3),
        ("  content: >-\n    one\n\n\n    two {{ a }}\n    three BAD\n\n    four\n", 5),
        ("  content: >2\n      one\n    two\n    BAD\n", 3),
        ("  content: |\n    one\n\n    BAD\n", 3),
        ("  content: 'one\n\n    two ''s {{ a }} BAD\n    three'\n", 2),
        ('  content: "one\\n\\n\\ntwo BAD"\n', 0),
        ('  content: "one\\\n    \\x41\\u0020\\t\\" two\n\n    {{ a }}\n    BAD"\n', 4),
        ("  sections:\n  - name: s\n    content: >\n      one\n      BAD\n", 4),
    ],
)
def test_a_line_is_that_of_the_file_in_every_style(bad: str, content: str, line: int) -> None:
    assert told(BEFORE + content.replace("BAD", bad)) == FIRST + line


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("  if: a and\n    a.b.c\n  content: x\n", 1),
        ("  if: >\n    a and\n    a b\n  content: x\n", 2),
        ('  if: "a and\n    a b"\n  content: x\n', 1),
        ("  if: |\n    a and\n    a b\n  content: x\n", 2),
        # What fails while it runs is told where its tag, or the expression, begins.
        ("  if: >\n\n    a and\n    a.b.c\n  content: x\n", 2),
        ("  for_each: x in\n    a.b.c\n  content: x\n", 1),
        ("  for_each: >\n    x in l +\n    a b\n  content: x\n", 2),
        ("  content: >\n    one {{ a +\n    a b }}\n", 2),
        ("  content: >\n    one\n    {{ a +\n    a.b.c }}\n", 2),
        ("  content: >\n    one {{ 'two\n    three' ~\n    a b }}\n", 3),
        ("  content: >\n    {% for x in\n    l %}one\n    {{ a.b.c }}{% endfor %}\n", 3),
        ("  content: >\n    {% raw %} {{\n    a }}{% endraw %}\n    {{ a.b.c }}\n", 3),
        ("  content: >\n    one {#- no\n    more -#}\n    {{ a.b.c }}\n", 3),
        ("  content: >\n    one\n    {{- a -}}\n    {{- a.b.c }}\n", 3),
    ],
)
def test_a_line_within_an_expression_too(keys: str, line: int) -> None:
    assert told(BEFORE + keys) == FIRST + line


words = st.sampled_from(
    ["one", "{{ a }}", "{{- a -}}", "{% if a %}", "{% endif %}", "{{ 'x y' }}", "\n", "\n\n"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=8), st.sampled_from([">", "'", '"', "", "|"]))
def test_what_is_written_stays_as_it_is(pieces: list[str], style: str) -> None:
    """The same text on one line, and over several."""
    depth = 0
    said = ["x"]
    for piece in pieces:
        depth += {"{% if a %}": 1, "{% endif %}": -1}.get(piece, 0)
        if depth < 0:
            depth = 0
            continue
        said.append(piece)
    said += ["{% endif %}"] * depth + ["y"]
    lines = " ".join(said).replace(" \n", "\n").replace("\n ", "\n").split("\n")
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    opening = {">": ">\n", "|": "|\n", "": ""}.get(style, style)
    closing = style if style in ("'", '"') else ""
    if closing == "'":
        body = body.replace("'x y'", "''x y''")
    written = opening + (body if opening in (">\n", "|\n") else body.lstrip()) + closing
    source = f"{BEFORE}  content: {written}\n"
    value = next(iter(yaml.safe_load_all(source.split("---\n")[1])))[1]["content"]
    value = value.removesuffix("\n") if style in (">", "|") else value
    flat = template_of(f"{BEFORE}  content: {_quoted(value)}\n", "f").render({}, FROZEN)
    assert template_of(source, "f").render({}, FROZEN).after == flat.after


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
