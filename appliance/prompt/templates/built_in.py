"""The built-in templates, and the name that asks for the default. Never: which character uses which."""

from __future__ import annotations

from functools import cache

from appliance.prompt.templates.compiling import template_of
from appliance.prompt.templates.template import Template

DEFAULT_TEMPLATE = "default"

_GIVEN = """\
  user: {description: What the user is called., default: "", sample: Tom}
  persona: {description: Who the user is., default: "", sample: A sailor.}
  note: {description: An author's note., default: "", sample: ""}
  pinned: {type: list, description: Texts that the user has pinned., default: [], sample: [It rains.]}
---
"""
"""The inputs that every conversation gives, after a template's own."""

_AROUND = """\
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
- name: pinned memory
  zone: pinned
  role: system
  for_each: memory in pinned
  content: "{{ memory }}"
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
"""Who the user is, what is pinned, the conversation, what is said after it: the end of all templates."""

_DEFAULT = (
    """\
name: default
description: The character's system text, who the user is, then the conversation.
inputs:
  character:
    type: map
    scope: character
    sample:
      {id: mara, name: Mara, description: Keeper of a lighthouse., system: You are Mara.,
       post_history: ""}
"""
    + _GIVEN
    + """\
# Without a system text the model keeps its own.
- name: system
  zone: character
  role: system
  if: character.system
  content: "{{ character.system }}"
"""
    + _AROUND
)

_CARD = (
    """\
name: card
description: The system text of a character card, its example dialogues one by one, the conversation.
inputs:
  character:
    type: map
    scope: character
    sample:
      {id: mara, name: Mara, description: "", system: You are Mara., post_history: "",
       examples: ["User: Hello?"]}
"""
    + _GIVEN
    + """\
- name: system
  zone: character
  role: system
  content: "{{ character.system }}"
# Each dialogue is a part of its own, so that it is in a prompt as a whole or not at all.
- name: example
  zone: character
  role: system
  for_each: dialogue in character.examples
  truncation_priority: 1
  content: "An example of how {{ character.name }} talks:\\n{{ dialogue }}"
"""
    + _AROUND
)


_GROUP = (
    """\
name: group
description: Who is there, each with their system text and example dialogues, the conversation.
inputs:
  character:
    type: map
    scope: character
    sample:
      {names: [Mara, Ben], members: [{name: Mara, system: You are Mara.}, {name: Ben, system: You}],
       examples: [{name: Mara, text: "User: Hello?"}], post_history: ""}
"""
    + _GIVEN
    + """\
- name: group
  zone: character
  role: system
  content: "This is a conversation with {{ character.names | join(', ') }}. Before each message stands
    who answers it. Answer as that one alone, without a name in front."
- name: member
  zone: character
  role: system
  for_each: member in character.members
  content: "About {{ member.name }}:\\n{{ member.system }}"
- name: example
  zone: character
  role: system
  for_each: dialogue in character.examples
  truncation_priority: 1
  content: "An example of how {{ dialogue.name }} talks:\\n{{ dialogue.text }}"
"""
    + _AROUND
)


@cache
def built_in() -> Template:
    """The template of a character that names none."""
    return template_of(_DEFAULT, "the built-in template")


@cache
def of_cards() -> Template:
    """The template of a character that is a card."""
    return template_of(_CARD, "the built-in template of cards")


@cache
def of_groups() -> Template:
    """The template of a conversation with several characters."""
    return template_of(_GROUP, "the built-in template of groups")
