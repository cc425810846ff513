"""Whatever somebody is called, writes about himself, notes, pins or has as lore is text in a prompt.

Each character is rendered with plain words in place of the values: with the values themselves, the parts
must be the same ones, and their texts the same with the values in place of the words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.chat.history import new_message
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.scene import scene_values, user_of
from appliance.chat.speakers import led
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.charx import CARD_FILE
from appliance.prompt.cast import Cast
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.fit import fit
from appliance.prompt.groups import Group
from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.lorebook import read_lorebook
from appliance.prompt.messages import Prompt, PromptMessage, Zone
from appliance.prompt.namespace import tenant_namespace
from appliance.prompt.templates.poet import PoetTemplate
from appliance.prompt.templates.reading import Reading
from appliance.prompt.truncate import Window
from appliance.store.records import NewMessage, Note, Persona, Scene
from appliance.store.text import storable
from appliance.tokens import unpack
from tests.card_fixtures import encoded, v3
from tests.characters import bundle_of
from tests.properties.test_templates import PIECES, encodes
from tests.unit.prompt.formats import format_of
from tests.unit.prompt.template_files import FROZEN, HISTORY
from tests.unit.prompt.templates import CHATML, LLAMA2, SMOLLM2

texts = (
    st.lists(st.sampled_from([*PIECES, ",", "::", "{{user}}", "{{char}}", "<bot>", "\\,", "//"]))
    .map("".join)
    .filter(lambda text: bool(text) and encodes(text))
)
WORDS = ("Uuu", "Ppp", "Nnn", "Qqq", "Rrr", "Mmm", "Lll")
"""A user's name, a persona, a note, two pinned texts, a message, an entry of lore."""

values = st.fixed_dictionaries(dict.fromkeys(WORDS, texts))
PLAIN = {word: word for word in WORDS}
TENANT = "ana"
WIDE = Window(limit=1 << 20, reserve=0, step=0)

CARD = v3(
    system_prompt="{{original}} Mind {{user}}.",
    description="{{char}} meets <user>. {{random:hey {{user}},ho {{user}}}} {{pick::{{user}}::{{user}}}}",
    personality="{{// {{user}} }}calm",
    scenario="{{nothing {{user}}}}",
    first_mes="Hello, {{user}}!",
    mes_example="<START>\n{{user}}: Hm.\n<START>\n{{random:{{user}},<user>}}: Oh.",
    post_history_instructions="{{random:{{user}},{{user}}}} waits.",
)
OWN = (
    """\
name: own
inputs:
  character: {type: map, scope: character}
  user: {}
  persona: {}
  note: {}
  pinned: {type: list}
---
- {name: system, zone: character, role: system, content: "{{ character.system }}"}
- name: who
  zone: persona
  role: user
  truncation_priority: 3
  content: |
    {{ user }}: {% if persona %}{{ persona }}{% endif %}
- {name: pin, zone: pinned, role: assistant, for_each: text in pinned, content: "{{ text ~ user }}"}
"""
    + HISTORY
    + """\
- {name: note, zone: volatile, role: system, if: note, content: "{{ pick([note, note]) }}"}
"""
)
POET = PoetTemplate.compile(
    """\
{% macro line(a, b) %}{{ a }}: {{ b }}{% endmacro %}
- name: first
  role: system
  content: {{ user }}
- name: who
  truncation_priority: 3
  content: |
    {{ line(user, persona) }}
{% for text in pinned %}
- name: pin {{ loop.index }}
  role: assistant
  content: "{{ text ~ user }}"
{% endfor %}
- name: note
  sections:
  - {name: a, content: "{{ note }}"}
  - {name: b, content: "{{ lore }}"}
""",
    "values.yml.j2",
)


@cache
def casts() -> Sequence[Cast]:
    """A character of a file, one with a template of its own, a card, and a group of them."""
    card = Bundle(name="mira", files={CARD_FILE: encoded(CARD)})
    bundles = (
        bundle_of("ada", system="You are Ada.", post_history="Count."),
        bundle_of("eve", system="You are Eve.", template="own", templates={"own": OWN}),
        card,
    )
    members = [CharacterVersion.of(bundle) for bundle in bundles]
    return (*members, Group.of(members))


def lore_of(content: str) -> Lore:
    """A book that always says this, and something that names the user within a macro."""
    own = "For {{user}}: {{random:{{user}}}}"
    entries = [{"constant": True, "content": text} for text in (own, content)]
    book = read_lorebook({"entries": entries})
    assert book is not None
    return Lore.of([book])


def prompt_of(cast: Cast, given: Mapping[str, str], template: str) -> Prompt:
    """The prompt of a chat in which each value is set: its first message calls up lore and a note."""
    chat_format = format_of(template)
    model = ModelText(tokenizer=chat_format.tokenizer, chat_format=chat_format, stop_token_ids=())
    scene = Scene(
        persona=Persona(name=given["Uuu"], text=given["Ppp"]),
        note=Note(text=given["Nnn"]),
        pinned=(given["Qqq"], given["Rrr"]),
    )
    user, namespace = user_of(scene), tenant_namespace(TENANT)
    speaker = cast.members[-1].character.id if cast.members else None
    rendered = cast.render(FROZEN, user=user, inputs=scene_values(scene), speaker=speaker)
    keeper = Lorekeeper(
        lore=lore_of(given["Lll"]),
        tokenizer=model.tokenizer,
        note=Note(text=given["Nnn"], every=1),
        macros=cast.macros(FROZEN, user=user),
        namespace=namespace,
        room_tokens=1 << 20,
    )
    _, lore = keeper.heard(keeper.recalled(()), given["Mmm"])
    new = NewMessage(message_id=UUID(int=1), role="user", text=given["Mmm"], lore=lore)
    openings = [
        PromptMessage(
            name="opening",
            role="assistant",
            zone=Zone.HISTORY,
            content=storable(text.text),
            namespace=namespace,
        )
        for _, text in cast.openings(FROZEN, user=user)[:1]
    ]
    fitted = fit(
        chat_format,
        [part.message(namespace) for part in rendered.before],
        [*openings, *new_message(led(new, cast, name=user, speaker=speaker), TENANT, model)],
        WIDE,
        after=[part.message(namespace) for part in rendered.after],
    )
    return fitted.prompt


def structure(prompt: Prompt) -> list[tuple[object, ...]]:
    return [
        (one.name, one.role, one.zone, one.truncation_priority, one.block, one.namespace)
        for one in prompt.messages
    ]


def filled(content: str, given: Mapping[str, str]) -> str:
    """A content of the plain words with the values in their place, all at once."""
    return re.sub("|".join(WORDS), lambda match: given[match.group()], content)


@pytest.mark.parametrize("number", range(4), ids=["file", "template", "card", "group"])
@settings(max_examples=25, deadline=None)
@given(given_values=values)
def test_no_value_changes_the_parts_of_a_prompt(number: int, given_values: dict[str, str]) -> None:
    cast = casts()[number]
    plain = prompt_of(cast, PLAIN, CHATML)
    made = prompt_of(cast, given_values, CHATML)
    assert structure(made) == structure(plain)
    # A lorebook's own macros are its author's syntax.
    known = {**given_values, "Lll": lore_text(cast, given_values)}
    for one, was in zip(made.messages, plain.messages, strict=True):
        assert storable(one.content) == storable(filled(was.content, known))


@pytest.mark.parametrize("number", range(4), ids=["file", "template", "card", "group"])
@pytest.mark.parametrize("template", [CHATML, SMOLLM2, LLAMA2], ids=["chatml", "smollm2", "llama2"])
@settings(max_examples=5, deadline=None)
@given(given_values=values)
def test_no_value_makes_a_control_token_in_a_prompt(
    number: int, template: str, given_values: dict[str, str]
) -> None:
    cast = casts()[number]
    plain, made = (
        list(unpack(prompt_of(cast, given, template).token_ids)) for given in (PLAIN, given_values)
    )
    for control in (0, 1, 2):
        assert made.count(control) == plain.count(control)


@settings(max_examples=40, deadline=None)
@given(given_values=values)
def test_nor_those_of_a_whole_file_template(given_values: dict[str, str]) -> None:
    def rendered(given: Mapping[str, str]) -> Reading:
        scene = Scene(
            persona=Persona(name=given["Uuu"], text=given["Ppp"]),
            note=Note(text=given["Nnn"]),
            pinned=(given["Qqq"], given["Rrr"]),
        )
        parts = POET.render({**scene_values(scene), "lore": given["Lll"]})
        return Reading(parts=parts, chat_format=format_of(CHATML))

    plain, made = rendered(PLAIN), rendered(given_values)
    for one, was in zip(made.parts, plain.parts, strict=True):
        assert (one.name, one.role, one.truncation_priority) == (
            was.name,
            was.role,
            was.truncation_priority,
        )
        assert one.content == filled(was.content, given_values)
    for control in (0, 1, 2):
        assert list(made.tokens).count(control) == list(plain.tokens).count(control)


def lore_text(cast: Cast, given: Mapping[str, str]) -> str:
    """What an entry of lore says in the prompt."""
    (entry,) = [one for book in lore_of(given["Lll"]).books for one in book.book.entries[1:]]
    macros = cast.macros(FROZEN, user=given["Uuu"])
    return macros.expand(entry.content, f"lore {entry.digest}").text
