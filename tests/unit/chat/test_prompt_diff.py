"""What an edit changes is found in whatever kind of chat feels it, and what cannot be tried is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.edit_samples import ENTRIES_MAX
from appliance.chat.prompt_diff import PromptDiff, prompt_diff
from appliance.chat.prompt_replay import prompt_replay
from appliance.chat.turn import Turns
from appliance.cli.prompt_compare import _diff_text
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.charx import CARD_FILE
from appliance.prompt.characters import Characters
from appliance.prompt.messages import Zone
from appliance.server.prompt_answers import diff_fields
from appliance.store.ledger import Ledger
from appliance.store.records import Note, Persona, Scene
from tests.card_fixtures import encoded, v2
from tests.characters import bundle_of, characters_of, with_lore
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.template_files import HISTORY

TEMPLATE = (
    """\
name: own
inputs:
  character: {type: map, scope: character}
  user: {default: ""}
  persona: {default: ""}
  note: {default: ""}
  pinned: {type: list, default: []}
  moods: {type: list, default: [calm, cross]}
---
- {name: system, zone: character, role: system, content: "{{ character.system }}"}
- {name: who, zone: persona, role: system, if: persona and not note, content: "About: {{ persona }}"}
- {name: called, zone: persona, role: system, if: user, content: "Call them {{ user }}."}
- {name: mood, zone: persona, role: system, content: "{{ pick(moods) }} on {{ date('%d %B') }}"}
- {name: pin, zone: pinned, role: system, for_each: text in pinned, content: "Mind: {{ text }}"}
"""
    + HISTORY
    + """\
- {name: pirate, zone: volatile, role: system, if: "'pirate' in persona", content: "Say arr."}
- {name: tail, zone: volatile, role: system, if: note, content: "Now: {{ note }}"}
"""
)
BOOK: dict[str, Any] = {
    "scan_depth": 2,
    "entries": [
        {"name": "owls", "keys": ["owl"], "content": "Owls are awake."},
        {
            "name": "hill",
            "keys": ["hill"],
            "secondary_keys": ["dragon"],
            "selective": True,
            "content": "@@activate_only_after 3\nA dragon sleeps.",
        },
        {"name": "odd", "keys": ["/gr[ae]y{3}/"], "use_regex": True, "content": "It is foggy."},
    ],
}


def ada(template: str = TEMPLATE, book: Mapping[str, Any] = BOOK, **fields: object) -> Bundle:
    given = {"system": "You are Ada.", "template": "own", **fields}
    return with_lore(bundle_of("assistant", templates={"own": template}, **given), book)


@pytest.fixture
def characters() -> Characters:
    return characters_of(ada())


async def compared(turns: Turns, old: Bundle, new: Bundle) -> PromptDiff:
    return await prompt_diff(turns.prompts.paths, turns.prompts.builder, old, new, days=7)


def said(found: PromptDiff) -> list[str]:
    """What the command prints, without the files' own differences."""
    return _diff_text({**diff_fields(found), "text": ""}).splitlines()


def edited(position: int, **fields: object) -> Mapping[str, Any]:
    entries = [dict(entry) for entry in BOOK["entries"]]
    entries[position] |= fields
    return {**BOOK, "entries": entries}


ANEW: dict[str, Any] = {"lore_placement": "as_written"}


@pytest.mark.parametrize(
    ("old", "new", "part", "where"),
    [
        (ada(), ada(system="You are Eve."), "system", ""),
        (ada(), ada(TEMPLATE.replace("About:", "This is")), "who", "with a persona"),
        (ada(), ada(TEMPLATE.replace("Call them", "They are")), "called", "with a user's name"),
        (ada(), ada(TEMPLATE.replace("Mind:", "Keep")), "pin 1", "with pinned texts"),
        (ada(), ada(TEMPLATE.replace("Now:", "Also")), "tail", "with an author's note"),
        (ada(), ada(TEMPLATE.replace("cross]", "angry]")), "mood", "with other draws"),
        (ada(), ada(TEMPLATE.replace("%d %B", "%d %b")), "mood", ""),
        (ada(), ada(post_history="Be kind."), "post-history instructions", "in a group"),
        (
            ada(),
            ada(book=edited(0, content="Owls sleep.")),
            "lore: owls",
            "where lore `owls` is called up",
        ),
        (
            ada(**ANEW),
            ada(book=edited(0, content="Owls sleep."), **ANEW),
            "lore: owls",
            "where lore `owls` is called up",
        ),
        (
            ada(**ANEW),
            ada(book=edited(1, content="@@activate_only_after 3\nNo dragon."), **ANEW),
            "lore: hill",
            "where lore `hill` is called up",
        ),
        (ada(), ada(**ANEW), "lore: owls", "where lore `owls` is called up"),
    ],
)
async def test_an_edit_is_found_by_whoever_feels_it(
    turns: Turns, old: Bundle, new: Bundle, part: str, where: str
) -> None:
    found = await compared(turns, old, new)
    assert not found.is_certain
    first = found.changes[0]
    assert (first.change.part, first.where) == (part, where)
    assert not any("the same, token for token" in line for line in said(found))


async def test_what_a_new_message_brings_and_what_follows_it_leave_chats_warm(
    turns: Turns,
) -> None:
    lore = await compared(turns, ada(), ada(book=edited(0, content="Owls sleep.")))
    assert [one.change.is_new for one in lore.changes] == [True]
    assert said(lore)[0] == (
        "prefix stays; a new message brings other text, in `lore: owls`, "
        "where lore `owls` is called up: 0 live chats stay warm"
    )
    alone = replace(lore, live=replace(lore.live, chats=1, compared=1))
    assert said(alone)[0].endswith(": 1 live chat stays warm")
    tail = await compared(turns, ada(), ada(TEMPLATE.replace("Now:", "Also")))
    assert [one.change.zone for one in tail.changes] == [Zone.VOLATILE]
    assert said(tail)[0].startswith("prefix stays; what follows the newest message changes")
    moved = await compared(turns, ada(**ANEW), ada(book=edited(0, content="Owls sleep."), **ANEW))
    assert moved.changes[0].change.goes_cold


async def test_the_same_is_said_only_where_it_is_certain(turns: Turns) -> None:
    certain = "prompts stay the same, token for token"
    for new in (ada(), ada(suggestions=["Hello!"]), ada(sampling={"temperature": "0.5"})):
        assert said(await compared(turns, ada(), new))[0] == certain
    card = {"description": "Zoe keeps bees."}
    cards = [
        Bundle(name="zoe", files={CARD_FILE: encoded(v2(name="Zoe", **card, **more))})
        for more in ({}, {"creator_notes": "For all."}, {"post_history_instructions": "Hum."})
    ]
    assert said(await compared(turns, cards[0], cards[1]))[0] == certain
    assert (await compared(turns, cards[0], cards[2])).changes
    pirate = await compared(turns, ada(), ada(TEMPLATE.replace("Say arr.", "Say aye.")))
    assert not pirate.changes
    lines = said(pirate)
    assert lines[0].startswith(f"none of {pirate.tried} prompts that were made up changes")
    assert "not known: nothing that was tried writes part `pirate`" in lines
    # What is not edited need not be tried: the part of pirates is the same in both.
    foggy = await compared(turns, ada(), ada(book=edited(2, content="It is clear.")))
    assert said(foggy)[1:-1] == ["not known: nothing that was tried calls up lore `odd`"]
    many = [
        {"name": f"n{n}", "keys": [f"key{n}"], "content": f"Text {n}."}
        for n in range(ENTRIES_MAX + 3)
    ]
    crowd = await compared(turns, ada(), ada(book={"entries": many}))
    left = len(BOOK["entries"]) + len(many) - ENTRIES_MAX
    assert f"not known: {left} more lore entries were not called up" in said(crowd)


async def test_live_chats_are_priced_by_their_own_prompts(
    turns: Turns,
    conversations: Conversations,
    ledger: Ledger,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
) -> None:
    engine.script = vocabulary.script("one", leaves_node=True)
    scenes = {
        "plain": Scene(),
        "pirate": Scene(persona=Persona(text="A pirate.")),
        "noted": Scene(persona=Persona(text="A sailor."), note=Note(text="Rain.")),
        "owls": Scene(),
    }
    texts = {"owls": "An owl!", "plain": "Hello " * 150}
    opened = {}
    for name, scene in scenes.items():
        opened[name] = await conversations.open(tenant=TENANT, scene=scene)
        await read(send(turns, opened[name].conversation_id, texts.get(name, "Hello")))

    async def costs(new: Bundle) -> tuple[int, int, int]:
        live = (await compared(turns, ada(), new)).live
        assert live.compared == 4
        return live.chats, live.cold, live.refused

    assert await costs(ada(system="You are Eve.")) == (4, 4, 0)
    # `who` stands where there is a persona and no note; what is behind the history leaves all warm.
    assert await costs(ada(TEMPLATE.replace("About:", "This is"))) == (4, 1, 0)
    assert await costs(ada(TEMPLATE.replace("Say arr.", "Say aye."))) == (4, 0, 0)
    # A text that no sample has: the chats' own show it.
    fierce = TEMPLATE.replace(
        "- {name: called,",
        "- {name: fierce, zone: persona, role: system, if: \"'pirate' in persona\", content: Arr.}\n"
        "- {name: called,",
    )
    found = await compared(turns, ada(), ada(fierce))
    assert (found.changes, found.live.cold) == ((), 1)
    assert said(found)[0].startswith("1 of 4 live chats goes cold when moved, about ")
    # What cannot be made for one chat is counted and told, and the others are compared.
    failing = ada(
        TEMPLATE.replace(
            "- {name: called,",
            "- {name: fails, zone: persona, role: system, if: \"'pirate' in persona\", "
            "content: \"{{ persona.split(',')[9] }}\"}\n- {name: called,",
        )
    )
    found = await compared(turns, ada(), failing)
    assert (found.live.compared, found.live.failed) == (4, 1)
    told = [line for line in said(found) if "no prompt can be made" in line]
    assert len(told) == 1
    assert "of 1 live chat no prompt can be made" in told[0]
    assert "`fails`" in told[0]
    prompts = turns.prompts
    replayed = await prompt_replay(prompts.paths, prompts.builder, ada(), failing, conversations=9)
    assert (replayed.before.failed, replayed.after.failed) == (0, 1)
    # Frozen lore stays as it was stored; lore anew is another prompt for who heard of owls.
    assert await costs(ada(book=edited(0, content="Owls sleep."))) == (4, 0, 0)
    assert await costs(ada(**ANEW)) == (4, 1, 0)
    assert await costs(ada(system="Be exact. " * 80)) == (4, 3, 1)


async def test_groups_that_hold_the_version_are_counted_apart(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
) -> None:
    engine.script = vocabulary.script("one", leaves_node=True)
    catalog = turns.prompts.builder.catalog
    catalog._current = replace(catalog.current, by_id=characters_of(ada(), bundle_of("ben")).by_id)
    group = await conversations.open(tenant=TENANT, members=("assistant", "ben"))
    await read(send(turns, group.conversation_id, "Hello"))
    found = await compared(turns, ada(), ada(system="You are Eve."))
    assert (found.live.chats, found.live.groups) == (0, 1)
    assert "1 live group has A among the members, and keep it" in said(found)
