"""Lore in stored chats: written before the message that called it up, and there for good."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.params import ChatLimits
from appliance.chat.prompt_view import PromptView
from appliance.chat.running import RunningTurns
from appliance.chat.turn import Turns
from appliance.prompt.characters import Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import Ledger
from appliance.tokens import count, unpack
from appliance.wire.client import EngineClient
from appliance.wire.frames import Generate
from tests.characters import bundle_of, characters_of, with_lore
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.chat.test_over_a_real_engine import (
    NOW,
    SHORT,
    client,
    directory,
    engine_socket,
    read_paths,
    sent,
)
from tests.unit.prompt.formats import written

__all__ = ["client", "directory", "engine_socket", "read_paths", "sent"]

BOOK = {
    "name": "World",
    "entries": [
        {"name": "Dragons", "keys": ["dragon"], "content": "Dragons sleep under the hill."},
        {"name": "Elves", "keys": ["elf"], "content": "Elves count the stars."},
        {"name": "Ow\0ls", "keys": ["owl"], "content": "Owls are awake."},
        {"name": "Rule", "content": "Nobody swims.", "constant": True, "insertion_order": -1},
    ],
}
DRAGONS, ELVES, OWLS, RULE = (str(entry["content"]) for entry in BOOK["entries"])  # type: ignore[index]


@pytest.fixture
def characters() -> Characters:
    keeper = bundle_of("assistant", system="You keep the light.", greeting="You made it!")
    return characters_of(with_lore(keeper, BOOK))


@pytest.fixture
def turns(ledger: Ledger, client: EngineClient, directory: Path, catalog: Catalog) -> Turns:
    return turns_of(ledger, client, directory, catalog)


def turns_of(ledger: Ledger, client: EngineClient, directory: Path, catalog: Catalog) -> Turns:
    """A chat layer as after a restart of the server."""
    return Turns(
        ledger=ledger,
        running=RunningTurns(),
        engine=client,
        model=ModelText.load(directory, now=NOW),
        catalog=catalog,
        limits=ChatLimits(),
    )


async def prompt_text(turns: Turns, directory: Path, opened: UUID, message_id: UUID) -> str:
    """What the model read for a reply, control tokens written out."""
    prompt = await PromptView(turns.prompts).prompt_of(
        tenant=TENANT, conversation_id=opened, message_id=message_id
    )
    chat_format = ModelText.load(directory, now=NOW).chat_format
    return written(chat_format, unpack(prompt.token_ids))


async def test_lore_stands_before_the_message_that_called_it_up_from_then_on(
    turns: Turns, conversations: Conversations, directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    texts = []
    for said in ("Hello", "A dragon!", "Where does the dragon sleep?", "An elf, a dragon"):
        _, _, done = await read(send(turns, opened, said, params=SHORT))
        assert done.message is not None
        texts.append(await prompt_text(turns, directory, opened, done.message.message_id))
    assert texts[0].count(RULE) == texts[3].count(RULE) == 1
    assert texts[0].index(RULE) < texts[0].index("Hello")
    assert DRAGONS not in texts[0]
    assert f"{DRAGONS}<|im_end|>\n<|im_start|>user\nA dragon!" in texts[1]
    assert texts[3].count(DRAGONS) == 1
    assert f"{ELVES}<|im_end|>\n<|im_start|>user\nAn elf, a dragon" in texts[3]
    for before, after in pairwise(texts):
        assert after.startswith(before)


async def test_a_name_that_cannot_be_stored_loses_no_turn(
    turns: Turns, conversations: Conversations, directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    _, _, done = await read(send(turns, opened, "An owl?", params=SHORT))
    assert done.message is not None
    text = await prompt_text(turns, directory, opened, done.message.message_id)
    assert OWLS in text


async def test_a_turn_with_lore_reads_and_sends_only_what_is_new(
    turns: Turns,
    conversations: Conversations,
    sent: list[Generate],
    read_paths: list[UUID],
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    prompts = []
    # Other words than in other tests: a page that was filled for another chat is no place to go on from.
    for said in (
        "Good day",
        "One dragon!",
        "Where?",
        "Two elves, one elf!",
        "Good night, elf and dragon",
    ):
        started, _, done = await read(send(turns, opened, said, params=SHORT))
        assert done.message is not None
        prompts.append((done.message.message_id, started.prompt_tokens))
    assert [frame.after is None for frame in sent] == [True, False, False, False, False]
    assert len(read_paths) == 1
    for (message_id, tokens), frame in zip(prompts, sent, strict=True):
        prompt = await PromptView(turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=opened, message_id=message_id
        )
        assert prompt.tokens == tokens
        assert prompt.stretches == tuple(frame.stretches)
        assert prompt.token_ids.endswith(frame.token_ids)
    with_dragons, without = count(sent[1].token_ids), count(sent[2].token_ids)
    assert with_dragons > without + 5


async def test_a_restarted_server_knows_what_stands_in_the_prompt(
    turns: Turns,
    conversations: Conversations,
    ledger: Ledger,
    client: EngineClient,
    directory: Path,
    catalog: Catalog,
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    await read(send(turns, opened, "A dragon!", params=SHORT))
    again = turns_of(ledger, client, directory, catalog)
    _, _, done = await read(send(again, opened, "The dragon and the elf?", params=SHORT))
    assert done.message is not None
    text = await prompt_text(again, directory, opened, done.message.message_id)
    assert (text.count(DRAGONS), text.count(ELVES), text.count(RULE)) == (1, 1, 1)


async def test_another_reply_has_the_same_lore_and_a_branch_its_own(
    turns: Turns, conversations: Conversations, directory: Path
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    _, _, first = await read(send(turns, opened, "Hello", params=SHORT))
    assert first.message is not None
    _, _, done = await read(send(turns, opened, "A dragon!", params=SHORT))
    swipe = turns.regenerate(tenant=TENANT, conversation_id=opened, message_id=None, params=SHORT)
    _, _, other = await read(swipe)
    edit = send(turns, opened, "An elf!", parent=first.message.message_id, params=SHORT)
    _, _, edited = await read(edit)
    assert done.message is not None
    assert other.message is not None
    assert edited.message is not None
    ids = (done.message.message_id, other.message.message_id, edited.message.message_id)
    one, two, three = [await prompt_text(turns, directory, opened, one) for one in ids]
    assert one == two
    assert (three.count(DRAGONS), three.count(ELVES), three.count(RULE)) == (0, 1, 1)
    # The branch is what the head shows: its lore is active, the dragons' is not.
    _, _, last = await read(send(turns, opened, "elf, dragon", params=SHORT))
    assert last.message is not None
    text = await prompt_text(turns, directory, opened, last.message.message_id)
    assert (text.count(DRAGONS), text.count(ELVES)) == (1, 1)


async def test_what_is_stored_of_lore_is_read_again_and_a_replayed_send_adds_none(
    turns: Turns, conversations: Conversations, ledger: Ledger
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    key = UUID(int=7)
    await read(send(turns, opened, "A dragon!", turn_key=key, params=SHORT))
    await read(send(turns, opened, "A dragon!", turn_key=key, params=SHORT))
    messages = await ledger.messages(TENANT, opened)
    assert [len(message.lore) for message in messages] == [0, 2, 0]
    assert [one.name for one in messages[1].lore] == ["Rule", "Dragons"]
    assert messages[1].lore[1].text == DRAGONS
