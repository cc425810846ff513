"""Which cause is told of a turn: one situation each, and what is not to be taken for it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from appliance.chat.prefix_causes import CAUSES
from appliance.prompt.bundle import Bundle
from appliance.prompt.sources import SourceKind
from appliance.store.records import FrozenText, Note, Persona, Scene
from appliance.tokens import count
from tests.card_fixtures import v2
from tests.characters import bundle_of, with_lore
from tests.unit.chat.explained_chat import ExplainedChat
from tests.unit.prompt.templates import ALTERNATING, CHATML

Situation: TypeAlias = Callable[[], Awaitable[ExplainedChat]]

# A part that is called as messages are, and one of the zone of personas that says nothing of any.
_TEMPLATE = """\
name: mira
inputs:
  character: {type: map, scope: character}
  user: {}
  persona: {}
  note: {}
---
- {name: message 1, zone: character, role: system, content: "You are {{ character.name }}."}
- {name: mood, zone: persona, role: system, content: "You are MOOD."}
- {name: user, zone: persona, role: system, if: user, content: "The user is {{ user }}."}
- {name: about, zone: pinned, role: system, if: persona, content: "{{ persona }} Be MOOD."}
- name: example
  zone: pinned
  role: system
  truncation_priority: 2
  content: "Mira: Ahoy, mind the rope, it is wet from the rain of this morning."
- {name: history, zone: history}
"""
_PRIORITIES = """\
name: cut
inputs: {character: {type: map, scope: character}}
---
- name: lower
  zone: pinned
  role: system
  truncation_priority: 1
  content: "Mind the rope. {{ character.name }}"
- {name: higher, zone: pinned, role: system, truncation_priority: 3, content: Mind the ladder.}
- {name: same, zone: pinned, role: system, truncation_priority: 2, content: Mind the hatch.}
- {name: history, zone: history, truncation_priority: 2}
- {name: "same, behind", zone: volatile, role: system, truncation_priority: 2, content: Mind the step.}
"""
_NOTE = '- {name: note, zone: volatile, role: system, if: note, content: "{{ note }}"}\n'
_RULE = "- {name: rule, zone: volatile, role: system, content: Answer in short.}\n"
LORE = (FrozenText(name="Owls", text="Owls are awake at night.", entry="e" * 32),)
HARES = (FrozenText(name="Hares", text="Hares run.", entry="f" * 32),)
SMALL_TOKENS = 240


def mira(mood: str = "calm", tail: str = _NOTE) -> Bundle:
    """The character of most situations; of another mood it is another version."""
    template = _TEMPLATE.replace("MOOD", mood) + tail
    return bundle_of("assistant", name="Mira", template="mira", templates={"mira": template})


SITUATIONS: dict[str, tuple[str, str, Situation]] = {}
"""By name: the cause, the begin of its detail, and what happened."""


def situation(cause: str, detail: str = "") -> Callable[[Situation], Situation]:
    def put(happens: Situation) -> Situation:
        SITUATIONS[happens.__name__] = (cause, detail, happens)
        return happens

    return put


async def three_turns(**fields: Any) -> ExplainedChat:
    chat = ExplainedChat(mira(), **fields)
    for text in ("One?", "Two?", "Three?"):
        await chat.say(text)
    return chat


@situation("first turn")
async def a_first_turn() -> ExplainedChat:
    chat = ExplainedChat(mira())
    await chat.say("One?")
    return chat


@situation("goes on")
async def a_turn_that_goes_on() -> ExplainedChat:
    return await three_turns()


@situation("goes on")
async def a_swipe() -> ExplainedChat:
    chat = await three_turns()
    await chat.answer(chat.turns[-1].path[:-1], "No.")
    return chat


@situation("other reply", "message 6")
async def a_message_below_the_reply_before_a_swipe() -> ExplainedChat:
    chat = await three_turns()
    third = chat.turns[-1]
    await chat.answer(third.path[:-1], "No, never.")
    await chat.say("Four?", after=third.path)
    return chat


@situation("other reply", "message 1")
async def another_greeting() -> ExplainedChat:
    chat = ExplainedChat(mira())
    for text in ("Ahoy!", "You made it!"):
        greeting = chat.message("assistant", text, None)
        await chat.say("Hello?", after=[greeting])
    return chat


@situation("edited message", "message 5")
async def an_edit_of_the_newest_message() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What?", after=chat.turns[1].path)
    return chat


@situation("edited message", "message 1")
async def an_edit_of_the_first_message() -> ExplainedChat:
    """A part of the template has the name of this message."""
    chat = await three_turns()
    await chat.say("What?", after=())
    return chat


@situation("edited message", "message 3")
async def a_rewind() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("Again?", after=chat.turns[0].path)
    return chat


@situation("goes on")
async def lore_that_the_newest_message_calls_up() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What of owls?", lore=LORE)
    return chat


@situation("edited message", "message 7")
async def an_edit_whose_lore_is_gone() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What of owls?", lore=LORE)
    await chat.say("What of rats?", after=chat.turns[2].path)
    return chat


@situation("edited message", "message 7")
async def an_edit_that_calls_up_other_lore() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What of owls?", lore=LORE)
    await chat.say("What of hares?", after=chat.turns[2].path, lore=HARES)
    return chat


@situation("edited message", "message 3")
async def an_edit_in_a_format_that_joins_messages() -> ExplainedChat:
    chat = ExplainedChat(mira(), template=ALTERNATING)
    await chat.say("One?")
    await chat.say("What of owls?", lore=LORE)
    await chat.say("What of hares?", after=chat.turns[0].path, lore=HARES)
    return chat


def keeper() -> Bundle:
    entries = [{"name": "owl", "keys": ["owl"], "content": "OWLS", "position": "before_char"}]
    bundle = bundle_of("assistant", system="You keep the light.", lore_placement="as_written")
    return with_lore(bundle, {"scan_depth": 1, "entries": entries})


@situation("lore", "lore: owl")
async def lore_that_comes_where_its_card_says() -> ExplainedChat:
    chat = ExplainedChat(keeper())
    await chat.say("One?")
    await chat.say("An owl?")
    return chat


@situation("lore", "lore: owl")
async def lore_that_goes() -> ExplainedChat:
    chat = ExplainedChat(keeper())
    await chat.say("An owl?")
    await chat.say("Two?")
    return chat


@situation("persona", "user")
async def a_name_for_the_user() -> ExplainedChat:
    chat = await three_turns()
    chat.scene = Scene(persona=Persona(name="Tom"))
    await chat.say("Four?")
    return chat


@situation("persona", "about")
async def a_persona_that_is_taken_away() -> ExplainedChat:
    chat = await three_turns(scene=Scene(persona=Persona(text="A sailor.")))
    chat.scene = Scene()
    await chat.say("Four?")
    return chat


@situation("persona", "about, persona")
async def another_persona() -> ExplainedChat:
    chat = await three_turns(scene=Scene(persona=Persona(text="A sailor.")))
    chat.scene = Scene(persona=Persona(text="A cook."))
    await chat.say("Four?")
    return chat


@situation("persona", "system, character")
async def another_name_in_a_card_that_says_it() -> ExplainedChat:
    card = v2(description="{{char}} waits for {{user}}.")
    chat = ExplainedChat(Bundle(name="assistant", files={"card.json": json.dumps(card).encode()}))
    await chat.say("One?")
    chat.scene = Scene(persona=Persona(name="Tom"))
    await chat.say("Two?")
    return chat


@situation("scene")
async def a_scene_of_which_only_the_digest_is_left() -> ExplainedChat:
    chat = await three_turns()
    digest = Scene(persona=Persona(name="Tom"), note=Note(text="Be sad.")).digest
    await chat.answer(chat.turns[-1].path[:-1], is_scene_known=False, scene_digest=digest)
    return chat


@situation("note")
async def a_note_of_which_only_the_digest_is_left() -> ExplainedChat:
    chat = await three_turns()
    digest = Scene(note=Note(text="Be sad.")).digest
    await chat.answer(chat.turns[-1].path[:-1], is_scene_known=False, scene_digest=digest)
    return chat


@situation("pinned text", "pinned memory 2, pinned")
async def a_text_that_is_pinned() -> ExplainedChat:
    chat = ExplainedChat(bundle_of("assistant", system="Be brief."))
    chat.scene = Scene(pinned=("It rains.",))
    await chat.say("One?")
    chat.scene = Scene(pinned=("It rains.", "The rope is wet."))
    await chat.say("Two?")
    return chat


@situation("goes on")
async def a_first_note() -> ExplainedChat:
    chat = await three_turns()
    chat.scene = Scene(note=Note(text="Be sad."))
    await chat.say("Four?")
    return chat


@situation("note", "note")
async def another_note_for_the_same_message() -> ExplainedChat:
    chat = await three_turns(scene=Scene(note=Note(text="Be sad.")))
    chat.scene = Scene(note=Note(text="Be glad."))
    await chat.answer(chat.turns[-1].path[:-1])
    return chat


@situation("volatile text", "note")
async def a_note_that_moves_behind_the_next_message() -> ExplainedChat:
    return await three_turns(scene=Scene(note=Note(text="Be sad.")))


@situation("volatile text", "rule")
async def text_of_the_template_behind_the_newest_message() -> ExplainedChat:
    chat = ExplainedChat(mira(tail=_RULE))
    await chat.say("One?")
    await chat.say("Two?")
    return chat


@situation("character version", "mood, ")
async def a_move_to_another_version() -> ExplainedChat:
    chat = await three_turns()
    chat.move_to(mira("cross"))
    await chat.say("Four?")
    return chat


@situation("character version", "message 1, ")
async def a_version_with_another_part_called_as_a_message() -> ExplainedChat:
    chat = await three_turns()
    template = _TEMPLATE.replace("You are {{", "Play {{")
    chat.move_to(bundle_of("assistant", name="Mira", template="m", templates={"m": template}))
    await chat.say("Four?")
    return chat


@situation("goes on")
async def a_version_that_says_the_same() -> ExplainedChat:
    chat = await three_turns()
    chat.move_to(mira(tail="# a comment\n" + _NOTE))
    await chat.say("Four?")
    return chat


async def until_cut(chat: ExplainedChat, messages: int) -> None:
    """Turns until so many messages at least are left out."""
    while chat.turns[-1].built.fitted.messages_dropped < messages:
        await chat.say("What is it that the herons eat?", reply="They eat fish and frogs.")


@situation("cut", "2 messages are left out more, example is left out")
async def a_full_window() -> ExplainedChat:
    chat = await three_turns(context_tokens=SMALL_TOKENS)
    await until_cut(chat, 1)
    return chat


@situation("cut", "2 messages are left out less, example is back")
async def a_rewind_before_the_cut() -> ExplainedChat:
    chat = await three_turns(context_tokens=SMALL_TOKENS)
    await until_cut(chat, 1)
    await chat.say("Again?", after=chat.turns[0].path)
    return chat


@situation("character version", "mood, ")
async def a_longer_version_that_makes_a_full_window() -> ExplainedChat:
    """More is cut too, but what differs first is what the new version says."""
    chat = await three_turns(context_tokens=SMALL_TOKENS)
    chat.move_to(mira("cross and wet from the rain of this morning"))
    await chat.say("Four?")
    assert chat.turns[-1].built.fitted.left_out
    assert not chat.turns[-2].built.fitted.left_out
    return chat


@situation("goes on")
async def a_turn_after_a_cut() -> ExplainedChat:
    chat = await three_turns(context_tokens=SMALL_TOKENS)
    await until_cut(chat, 1)
    await chat.say("Why?")
    return chat


@situation("tokenizer")
async def a_turn_before_of_another_tokenizer() -> ExplainedChat:
    chat = ExplainedChat(mira())
    await chat.say("One?", tokenizer="other")
    await chat.say("Two?")
    return chat


@situation("evicted", "")
async def an_eviction() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("Four?", found_most=30)
    return chat


@situation("cold")
async def a_cold_start() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("Four?", found_most=0)
    return chat


@situation("evicted")
async def an_eviction_and_an_edit() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What?", after=chat.turns[1].path, found_most=30)
    return chat


@situation("edited message", "message 5")
async def an_edit_that_finds_all_it_could() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("What?", after=chat.turns[1].path)
    return chat


async def half_a_character(found: int) -> ExplainedChat:
    """`found` tokens of the reply are cached as they were generated; its text shows a stand-in."""
    chat = await three_turns()
    last = await chat.answer(chat.turns[-1].path[:-1], "Yes, \ufffd")
    await chat.say("Four?", found_most=last.prompt.tokens + found)
    return chat


@situation("broken character", "message 6")
async def a_reply_that_ended_inside_a_character() -> ExplainedChat:
    return await half_a_character(2)


@situation("evicted")
async def an_eviction_before_such_a_reply() -> ExplainedChat:
    return await half_a_character(-40)


@situation("stopped reply")
async def a_reply_that_was_stopped() -> ExplainedChat:
    chat = await three_turns()
    closing = count(chat.turns[-1].prompt.closing)
    await chat.say("Four?", found_most=count(chat.cached[-1]) - closing - 1)
    return chat


@situation("changed since")
async def a_turn_whose_prompt_is_of_another_size_now() -> ExplainedChat:
    chat = await three_turns()
    await chat.say("Four?", prompt_tokens=7)
    return chat


@pytest.mark.parametrize("name", sorted(SITUATIONS))
async def test_a_situation_has_its_cause(name: str) -> None:
    cause, detail, happens = SITUATIONS[name]
    told = (await happens()).explained()
    assert (told.cause.name, told.cause.detail[: len(detail)]) == (cause, detail)
    assert sum(part.tokens for part in told.parts) == told.tokens
    if told.is_as_sent:
        assert sum(part.cached or 0 for part in told.parts) == told.cached_tokens
    if told.first_difference is not None:
        assert told.first_difference.position == told.shared_tokens < told.tokens


def test_every_cause_of_a_turn_has_its_situation() -> None:
    told = {cause for cause, _, _ in SITUATIONS.values()}
    of_the_cache_now, of_groups = {"cached", "namespace"}, {"members"}
    # A template's variables are the character's and the scene's: nothing else changes one today. A format
    # has a cause for what no other explains.
    elsewhere = of_the_cache_now | of_groups | {"template variable", "chat format"}
    assert CAUSES.keys() - told == elsewhere


async def test_a_part_is_told_by_what_it_is() -> None:
    chat = await three_turns(scene=Scene(persona=Persona(name="Tom"), note=Note(text="Be sad.")))
    await chat.say("What of owls?", lore=LORE)
    told = chat.explained()
    user = str(chat.turns[-1].path[-2].message_id)
    kinds = [(part.name, part.source, part.message_id) for part in told.parts]
    assert kinds[:4] == [
        ("message 1", SourceKind.PART, None),
        ("mood", SourceKind.PART, None),
        ("user", SourceKind.PERSONA, None),
        ("example", SourceKind.PART, None),
    ]
    assert kinds[-4:] == [
        ("lore: Owls", SourceKind.LORE, user),
        ("message 7", SourceKind.MESSAGE, user),
        ("note", SourceKind.NOTE, None),
        ("reply header", SourceKind.FORMAT, None),
    ]


async def test_what_was_cut_is_told_in_messages_and_with_priorities_also_where_lore_went_along() -> (
    None
):
    chat = ExplainedChat(mira(), context_tokens=SMALL_TOKENS)
    await chat.say("What of owls?", lore=LORE)
    await until_cut(chat, 2)
    told = chat.explained()
    spoken = chat.turns[-1].path[:-1]
    assert told.context_begins_at == spoken[told.messages_dropped].message_id
    assert told.history_priority == 1
    (gone,) = told.parts_dropped
    assert (gone.name, gone.truncation_priority, gone.block) == ("example", 2, None)
    assert gone.tokens > 20
    assert not [part for part in told.parts if part.source is SourceKind.LORE]
    begins = next(part for part in told.parts if part.source is SourceKind.MESSAGE)
    assert begins.message_id == str(told.context_begins_at)


async def test_which_parts_go_before_old_turns_is_told_as_the_cut_has_it() -> None:
    chat = ExplainedChat(
        bundle_of("assistant", template="cut", templates={"cut": _PRIORITIES}), context_tokens=300
    )
    gone: dict[str, bool] = {}
    number = 0
    while len(gone) < 4:
        number += 1
        path = chat.turns[-1].path if number < 8 and chat.turns else ()
        # At first many short messages, then longer and longer ones that begin anew.
        await chat.say("Ahoy! " * max(number - 7, 2), after=path)
        told = chat.explained()
        gone = {part.name: part.goes_before_history for part in told.parts_dropped}
        if told.messages_dropped:
            assert gone == {"higher": True, "same": True}
        elif any(not is_early for is_early in gone.values()):
            assert {"higher", "same"} < gone.keys()
    assert gone == {"higher": True, "same": True, "lower": False, "same, behind": False}


async def test_where_the_prefix_ends_both_texts_are_told() -> None:
    chat = ExplainedChat(mira(), template=CHATML)
    await chat.say("One fish?")
    await chat.say("Two birds?")
    await chat.say("Two cats?", after=chat.turns[0].path)
    place = chat.explained().first_difference
    assert place is not None
    assert (place.part, place.source) == ("message 3", SourceKind.MESSAGE)
    assert (place.before or "").endswith("Two ")
    assert (place.asked or "").startswith("cat")
    assert (place.found or "").startswith("bird")
