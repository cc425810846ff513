"""The built-in template, and the name that asks for it. Never: which character uses which."""

from __future__ import annotations

from functools import cache

from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.template import Template

DEFAULT_TEMPLATE = "default"

_DEFAULT = """\
name: default
description: The character's system text, who the user is, then the conversation.
inputs:
  character:
    type: map
    scope: character
    sample:
      {id: mara, name: Mara, description: Keeper of a lighthouse., system: You are Mara.,
       post_history: ""}
  user: {description: What the user is called., default: "", sample: Tom}
  persona: {description: Who the user is., default: "", sample: A sailor.}
  note: {description: An author's note., default: "", sample: ""}
---
# Without a system text the model keeps its own.
- name: system
  zone: character
  role: system
  if: character.system
  content: "{{ character.system }}"
- name: user
  zone: persona
  role: system
  if: user
  content: "The user's name is {{ user }}."
- name: persona
  zone: persona
  role: system
  if: persona
  content: "{{ persona }}"
- name: history
  zone: history
- name: author's note
  zone: volatile
  role: system
  if: note
  content: "{{ note }}"
- name: post-history instructions
  zone: volatile
  role: system
  if: character.post_history
  content: "{{ character.post_history }}"
"""


@cache
def built_in() -> Template:
    """The template of a character that names none."""
    return template_of(_DEFAULT, "the built-in template")
