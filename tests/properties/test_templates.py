"""Whatever the values are, a template's parts are those of its file, and no control token appears."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import TemplateError
from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.parts import RenderedPart
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.templates.reading import Reading
from tests.unit.prompt.formats import format_of, written
from tests.unit.prompt.template_files import FROZEN
from tests.unit.prompt.templates import CHATML, LLAMA2, SMOLLM2

PIECES = [
    "\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x00", "\x1b", "\ufeff", "\ud800", "\t", " ", "  ",
    "- ", "name: evil", "role: system", "content: |", "truncation_priority: 9", "tokens: [1]", "#", "'",
    '"', "\\n", "\\", "*a", "&a", "!!x", "{{", "}}", "{%", "%}", "{#", "{% endraw %}", "---", "...", "|",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "end|>", "<|space|>", "\ue000", "\ue001",
    "\ue002", "0:0", "5", "yes", "null", "é", "漢", "🙂",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)
values = st.fixed_dictionaries(
    {"who": texts, "text": texts, "pins": st.lists(texts, min_size=2, max_size=2)}
)
PLAIN: Mapping[str, Any] = {"who": "x", "text": "x", "pins": ["x", "x"]}

OWN = template_of(
    """\
name: property
inputs:
  who: {}
  text: {}
  pins: {type: list}
---
- {name: first, zone: persona, role: system, content: "{{ who }}"}
- name: second
  role: user
  truncation_priority: 3
  content: |
    {{ who }}: {{ text }}
- name: pin
  zone: pinned
  role: assistant
  for_each: pin in pins
  sections:
  - {name: a, content: "{{ pin }}"}
  - {name: b, content: "{{ text }}"}
- {name: history, zone: history}
""",
    "property.yaml",
)
POET = PoetTemplate.compile(
    """\
{% macro line(a, b) %}{{ a }}: {{ b }}{% endmacro %}
- name: first
  role: system
  content: {{ who }}
- name: second
  truncation_priority: 3
  content: |
    {{ line(who, text) }}
{% for pin in pins %}
- name: pin {{ loop.index }}
  role: assistant
  content: "{{ pin ~ text }}"
{% endfor %}
""",
    "property.yml.j2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the author of both templates wrote, as a slow reference has it."""

    contents: list[str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Written:
        who, text = given["who"], given["text"]
        return cls(contents=[who, f"{who}: {text}", *(pin + text for pin in given["pins"])])


def structure(parts: tuple[RenderedPart, ...]) -> list[tuple[str, str, int]]:
    return [(part.name, part.role, part.truncation_priority) for part in parts]


@settings(max_examples=150, deadline=None)
@given(given_values=values)
def test_no_value_changes_the_parts_of_either_mode(given_values: dict[str, Any]) -> None:
    expected = [
        ("first", "system", 0),
        ("second", "user", 3),
        ("pin 1", "assistant", 0),
        ("pin 2", "assistant", 0),
    ]
    for parts in (OWN.render(given_values, FROZEN).parts, POET.render(given_values)):
        assert structure(parts) == expected
        assert [part.content for part in parts] == Written.of(given_values).contents


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, LLAMA2])
@settings(max_examples=30, deadline=None)
@given(given_values=values.filter(lambda v: _encodes(v)))
def test_no_value_makes_a_control_token(template: str, given_values: dict[str, Any]) -> None:
    chat_format = format_of(template)
    plain = Reading(parts=OWN.render(PLAIN, FROZEN).parts, chat_format=chat_format).tokens
    for parts in (OWN.render(given_values, FROZEN).parts, POET.render(given_values)):
        tokens = Reading(parts=parts, chat_format=chat_format).tokens
        for control in (0, 1, 2):
            assert list(tokens).count(control) == list(plain).count(control)
        text = written(chat_format, tokens)
        assert all(part.content.strip() in text for part in parts)


_SOURCE = [
    "name: x\n", "inputs:\n  a: {sample: b}\n", "---\n", "- name: p\n", "  role: system\n",
    "  content: ", "'{{ a }}'\n", "  content: |\n    ", "{{ a }}", "{% if a %}", "{% endif %}",
    "{% for x in a %}", "{% endfor %}", "  if: a\n", "  for_each: x in a\n", "  sections: []\n",
    "- {name: history, zone: history}\n", "- include: x\n", "{% macro m() %}", "{% endmacro %}",
    "{{ m() }}", "{% set a = 1 %}", "{{ a | join }}", "{{ a.b.c() }}", "{% include 'x' %}",
    "{% raw %}", "  zone: volatile\n", "{{ range(9) | list }}", "{{ a ~ 1 }}", "{{ loop }}",
    "{% block b %}{% endblock %}", "{% extends a %}", "{% call m() %}{% endcall %}",
    "{% autoescape true %}", "{% endautoescape %}", "{{ self }}", "{{ a[::-1] }}",
    "{{ pick(a) }}", "{{ roll(-1) }}", "{{ date(a) }}", "{{ dict(a=a) }}", "{{ namespace(a) }}",
    "\n", "    ",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    source=st.lists(st.sampled_from(_SOURCE) | st.sampled_from(PIECES), max_size=14).map("".join)
)
def test_whatever_a_template_is_it_renders_or_is_refused_by_file_and_line(source: str) -> None:
    prefix = "name: x\ninputs:\n  a: {}\n---\n"
    own = (
        f"- {{name: history, zone: history}}\n- name: p\n  zone: volatile\n  role: system\n{source}"
    )
    attempts: list[Callable[[], object]] = [
        lambda: template_of(source, "f").render({"a": "x"}, FROZEN),
        lambda: template_of(prefix + own, "f").render({"a": "x"}, FROZEN),
        lambda: PoetTemplate.compile(source, "f").render({"a": "x"}),
    ]
    refused = []
    for attempt in attempts:
        try:
            attempt()
        except TemplateError as error:
            refused.append(error.message)
    assert all(re.match(r"f( \(rendered\))?, line [0-9]+", message) for message in refused)


def encodes(text: str) -> bool:
    """Whether a text is UTF-8: a lone surrogate is refused at the door."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encodes(given_values: Mapping[str, Any]) -> bool:
    return encodes("".join([given_values["who"], given_values["text"], *given_values["pins"]]))
