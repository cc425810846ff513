"""The built-in template, and the name that asks for it. Never: which character uses which."""

from __future__ import annotations

from functools import cache

from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.template import Template

DEFAULT_TEMPLATE = "default"

_DEFAULT = """\
name: default
description: The character's system text, then the conversation.
inputs:
  character:
    type: map
    scope: character
    sample: {id: mara, name: Mara, description: Keeper of a lighthouse., system: You are Mara.}
---
# Without a system text the model keeps its own.
- name: system
  zone: character
  role: system
  if: character.system
  content: "{{ character.system }}"
- name: history
  zone: history
"""


@cache
def built_in() -> Template:
    """The template of a character that names none."""
    return template_of(_DEFAULT, "the built-in template")
