"""Lore and scenes in stored chats over a real engine: what must not be shared, forgotten, or too much."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.lorekeeper import LORE_SHARE
from appliance.chat.turn import Turns
from appliance.prompt.cards.bundle import card_bundle
from appliance.prompt.cards.reading import read_card
from appliance.prompt.characters import Characters
from appliance.prompt.namespace import PUBLIC
from appliance.store.ledger import Ledger
from appliance.store.records import Persona, Scene
from appliance.tokens import count, head
from appliance.wire.client import EngineClient
from appliance.wire.frames import Generate
from tests.card_fixtures import encoded, v3
from tests.characters import bundle_of, characters_of, with_lore
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.chat.test_lore import prompt_text, turns_of
from tests.unit.chat.test_over_a_real_engine import (
    SHORT,
    client,
    directory,
    engine_socket,
    sent,
)

__all__ = ["client", "directory", "engine_socket", "sent"]

DRAGONS = "Dragons sleep under the hill."
BOOK: Mapping[str, object] = {
    "token_budget": 900_000,
    "entries": [
        {"name": "Dragons", "keys": ["dragon"], "content": DRAGONS},
        {"name": "Nul", "keys": ["owl"], "content": "Ow\0ls are \0 awake."},
        *(
            {"name": f"big {n}", "keys": ["whale"], "content": f"{n} " + "whale " * 12}
            for n in range(30)
        ),
    ],
}
MIRA = card_bundle(
    read_card(
        encoded(
            v3(
                name="Mira",
                first_mes="Good evening, {{user}}, my dear.",
                alternate_greetings=["The lamp is lit."],
                character_book={
                    "extensions": {},
                    "entries": [
                        {
                            "name": "first",
                            "keys": ["lamp"],
                            "content": "@@is_greeting 0\nIt is evening.",
                            "extensions": {},
                        },
                        {
                            "name": "second",
                            "keys": ["lamp"],
                            "content": "@@is_greeting 1\nIt is night.",
                            "extensions": {},
                        },
                    ],
                },
            )
        )
    ),
    "mira",
)
DICE = card_bundle(
    read_card(encoded(v3(name="Dice", first_mes="You drew {{roll:999999}} today."))), "dice"
)


@pytest.fixture
def characters() -> Characters:
    keeper = bundle_of("assistant", system="You keep the light.")
    moving = bundle_of("mover", system="You move.", lore_placement="as_written")
    return characters_of(with_lore(keeper, BOOK), with_lore(moving, BOOK), MIRA, DICE)


@pytest.fixture
def turns(ledger: Ledger, client: EngineClient, directory: Path, catalog: Catalog) -> Turns:
    return turns_of(ledger, client, directory, catalog)


def public_text(turns: Turns, frame: Generate) -> str:
    """The stretches of a prompt that all tenants share."""
    at, found = 0, []
    tokenizer = turns.planner.builder.model.tokenizer
    for namespace, tokens in frame.stretches:
        if namespace == PUBLIC:
            found.append(tokenizer.decode(head(frame.token_ids, at + tokens)[4 * at :]))
        at += tokens
    return "".join(found)


async def say(turns: Turns, opened: UUID, text: str) -> UUID:
    _, _, done = await read(send(turns, opened, text, params=SHORT))
    assert done.message is not None
    return done.message.message_id


async def test_a_greeting_that_names_the_user_is_shared_with_nobody(
    turns: Turns, conversations: Conversations, sent: list[Generate]
) -> None:
    scene = Scene(persona=Persona(name="Tomasina"))
    for given, is_shared in ((scene, False), (None, True)):
        opened = await conversations.open(tenant=TENANT, character="mira", scene=given)
        await say(turns, opened.conversation_id, "Hello")
        public = public_text(turns, sent[-1])
        assert "Tomasina" not in public
        assert ("Good evening" in public) == is_shared


async def test_a_greeting_that_draws_is_shared_with_nobody(
    turns: Turns, conversations: Conversations, sent: list[Generate]
) -> None:
    """Nothing private stands before it that would hide it."""
    opened = await conversations.open(tenant=TENANT, character="dice")
    await say(turns, opened.conversation_id, "Hello")
    assert "Dice" in public_text(turns, sent[-1])
    assert "You drew" not in public_text(turns, sent[-1])
    assert "You drew" in turns.planner.builder.model.tokenizer.decode(sent[-1].token_ids)


async def test_lore_that_stands_anew_in_each_prompt_is_shared_with_nobody(
    turns: Turns, conversations: Conversations, sent: list[Generate], directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT, character="mover")).conversation_id
    reply = await say(turns, opened, "A dragon!")
    assert DRAGONS in await prompt_text(turns, directory, opened, reply)
    public = public_text(turns, sent[-1])
    assert "You move." in public
    assert "Dragons" not in public


async def test_a_turn_after_a_changed_persona_is_made_with_it(
    turns: Turns, conversations: Conversations, sent: list[Generate]
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await say(turns, opened, "Good morning to you")
    await say(turns, opened, "Who am I?")
    assert sent[-1].after is not None
    decode = turns.planner.builder.model.tokenizer.decode
    for name in ("Tomasina", "Annabel"):
        held = await conversations.get(tenant=TENANT, conversation_id=opened)
        await conversations.change(held, scene=Scene(persona=Persona(name=name)))
        await say(turns, opened, "And now?")
        assert sent[-1].after is None
        assert f"The user's name is {name}." in decode(sent[-1].token_ids)
        await say(turns, opened, "And then?")
        assert sent[-1].after is not None


async def test_lore_that_a_cut_took_away_comes_again_where_turns_go_on(
    turns: Turns, conversations: Conversations, sent: list[Generate], directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await say(turns, opened, "A dragon! " + "tale " * 60)
    reply, cut = None, False
    while not cut:
        _, _, done = await read(send(turns, opened, "A long tale. " * 40, params=SHORT))
        assert done.message is not None
        reply = done.message.message_id
        held = await conversations.get(tenant=TENANT, conversation_id=opened)
        cut = held.anchor_id is not None
    assert reply is not None
    assert DRAGONS not in await prompt_text(turns, directory, opened, reply)
    reply = await say(turns, opened, "Where is the dragon?")
    assert sent[-1].after is not None, "the turn goes on from the one before"
    assert (await prompt_text(turns, directory, opened, reply)).count(DRAGONS) == 1


async def test_what_one_message_calls_up_has_a_share_of_the_room_whatever_the_book_says(
    turns: Turns, conversations: Conversations, ledger: Ledger
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await say(turns, opened, "A whale!")
    user, _ = await ledger.messages(TENANT, opened)
    tokenizer = turns.planner.builder.model.tokenizer
    sizes = [count(tokenizer.encode(one.text)) for one in user.lore]
    cast = await turns.planner.builder.catalog.of(None, None)
    room = turns.planner.builder.window(cast).room // LORE_SHARE
    assert room - max(sizes) < sum(sizes) <= room


async def test_a_text_with_u0000_is_stored_and_shows_a_sign_for_it(
    turns: Turns, conversations: Conversations, ledger: Ledger, directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    reply = await say(turns, opened, "An owl")
    user, _ = await ledger.messages(TENANT, opened)
    assert [one.text for one in user.lore] == ["Ow␀ls are ␀ awake."]
    text = await prompt_text(turns, directory, opened, reply)
    assert "\0" not in text


async def test_an_entry_asks_with_which_greeting_the_conversation_began(
    turns: Turns,
    conversations: Conversations,
    ledger: Ledger,
    client: EngineClient,
    directory: Path,
    catalog: Catalog,
) -> None:
    scene = Scene(persona=Persona(name="Tom"))
    opened = await conversations.open(tenant=TENANT, character="mira", scene=scene)
    first, second = await ledger.messages(TENANT, opened.conversation_id)
    found = []
    for greeting in (first, second):
        for layer in (turns, turns_of(ledger, client, directory, catalog)):
            events = send(
                layer,
                opened.conversation_id,
                "The lamp",
                parent=greeting.message_id,
                params=SHORT,
            )
            _, _, done = await read(events)
            assert done.message is not None
            assert done.message.parent_id is not None
            asked = await ledger.message(TENANT, opened.conversation_id, done.message.parent_id)
            found.append([one.text for one in asked.lore])
    assert found == [["It is evening."]] * 2 + [["It is night."]] * 2
    # Written when the user had no name, and found all the same.
    plain = await conversations.open(tenant=TENANT, character="mira")
    held = await conversations.get(tenant=TENANT, conversation_id=plain.conversation_id)
    await conversations.change(held, scene=scene)
    await say(turns, plain.conversation_id, "The lamp")
    _, _, user, _ = await ledger.messages(TENANT, plain.conversation_id)
    assert [one.text for one in user.lore] == ["It is evening."]
