"""Templates that several tests render, and how."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from appliance.errors import TemplateError
from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.parts import RenderedPart
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.templates.template import Template

FROZEN = Beginning(seed=b"a conversation", started=datetime(2026, 3, 1, 9, tzinfo=UTC))
HISTORY = "- {name: history, zone: history}\n"

# The template of cases P01 to P05, for each mode.
POET_CHAT = """\
- name: system
  role: system
  content: |
    You are {{ character_name }}.
- name: message
  role: user
  truncation_priority: 1
  content: |
    {{ user_name }}: {{ message }}
- name: reply
  role: assistant
  content: "{{ character_name }}:"
"""
CHAT = """\
name: chat
inputs:
  character_name: {scope: character, sample: Mira}
  user_name: {sample: Ana}
  message: {sample: hello}
---
- name: system
  zone: character
  role: system
  content: |
    You are {{ character_name }}.
- name: message
  zone: persona
  role: user
  truncation_priority: 1
  content: |
    {{ user_name }}: {{ message }}
- name: reply
  role: assistant
  content: "{{ character_name }}:"
- name: history
  zone: history
"""
VALUES = {"character_name": "Mira", "user_name": "Ana", "message": "hello"}


@cache
def _compiled(text: str) -> Template:
    return template_of(text, "chat.yaml")


@cache
def _poet_compiled(text: str) -> PoetTemplate:
    return PoetTemplate.compile(text, "chat.yml.j2")


def own(text: str, values: Mapping[str, Any]) -> tuple[RenderedPart, ...]:
    """The parts of a template of our own kind."""
    return _compiled(text).render(values, FROZEN).parts


def poet(text: str, values: Mapping[str, Any]) -> tuple[RenderedPart, ...]:
    """The parts of a whole-file template."""
    return _poet_compiled(text).render(values)


def both(values: Mapping[str, Any]) -> list[tuple[RenderedPart, ...]]:
    """The parts of the cases' template in each mode."""
    return [own(CHAT, values), poet(POET_CHAT, values)]


def body(content: str, inputs: str = "  message: {sample: hi}\n") -> str:
    """A template with one part of this content (a block of lines)."""
    lines = "".join(f"    {line}\n" for line in content.split("\n"))
    return (
        f"name: x\ninputs:\n{inputs}---\n- name: p\n  zone: persona\n  role: system\n"
        f"  content: |\n{lines}{HISTORY}"
    )


def fault(text: str, values: Mapping[str, Any]) -> str:
    """What is said of a template of our own kind that does not compile or render."""
    return _said(own, text, values)


def poet_fault(text: str, values: Mapping[str, Any]) -> str:
    """What is said of a whole-file template that does not compile or render."""
    return _said(poet, text, values)


def _said(render: Any, text: str, values: Mapping[str, Any]) -> str:
    try:
        parts = render(text, values)
    except TemplateError as error:
        return error.message
    raise AssertionError(f"it rendered to {parts!r:.200}")
