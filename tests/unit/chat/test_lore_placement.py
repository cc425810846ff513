"""Lore where a card says it: anew in every prompt, for characters that ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.history import with_lore as with_texts
from appliance.chat.lore_placement import Placed, placed
from appliance.chat.turn import Turns
from appliance.prompt.characters import Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.lore.lorebook import read_lorebook
from appliance.store.records import FrozenText
from appliance.tokens import unpack
from tests.characters import bundle_of, characters_of, with_lore
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.formats import conversation, written


def entry(key: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"name": key, "keys": [key], "content": content, **fields}


BOOK = {
    "scan_depth": 3,
    "entries": [
        entry("top", "AT THE TOP", position="before_char"),
        entry("below", "BELOW THE CHARACTER OF {{user}}", position="after_char"),
        entry("deep", "@@depth 2\n@@role user\nTWO DEEP"),
        entry("last", "@@depth 0\n@@role user\nAT THE END"),
        entry("named", "@@position before_desc\n@@depth 1\nBEFORE THE TEXT"),
        entry("front", "@@reverse_depth 1\nONE FROM THE FRONT"),
    ],
}


@pytest.fixture
def characters() -> Characters:
    keeper = bundle_of("assistant", system="Be brief.", lore_placement="as_written")
    return characters_of(with_lore(keeper, BOOK))


async def test_entries_stand_where_the_card_says_and_go_when_nobody_calls_them(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> None:
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    engine.script = vocabulary.script("one")
    said = ["Hello", "top below deep last named front", "Again", "Once more", "Bye"]
    for text in said:
        await read(send(turns, opened, text))
    texts = [written(model.chat_format, unpack(asked.token_ids)) for asked in engine.generated]
    second = texts[1]
    order = [
        "BEFORE THE TEXT",
        "Be brief.",
        "BELOW THE CHARACTER OF User",
        "Hello",
        "TWO DEEP",
        "top below deep",
        "AT THE END",
    ]
    places = [second.index(text) for text in order]
    assert places == sorted(places)
    assert second.index("AT THE TOP") < second.index("Be brief.")
    assert second.index("Hello") < second.index("ONE FROM THE FRONT") < second.index("top below")
    assert "TWO DEEP" in texts[2]
    for text in ("BEFORE", "BELOW", "TWO", "END", "TOP", "FRONT"):
        assert text not in texts[4]
    messages = await conversations.messages(tenant=TENANT, conversation_id=opened)
    assert not any(message.lore for message in messages)


@pytest.mark.parametrize(
    ("decorator", "order"),
    [
        ("@@depth 1", "note 1, a, b, DEEP, note 2, c"),
        ("@@depth 2", "note 1, a, DEEP, b, note 2, c"),
        ("@@depth 3", "DEEP, note 1, a, b, note 2, c"),
        ("@@depth 9", "DEEP, note 1, a, b, note 2, c"),
        ("@@reverse_depth 0", "DEEP, note 1, a, b, note 2, c"),
        ("@@reverse_depth 1", "note 1, a, DEEP, b, note 2, c"),
        ("@@reverse_depth 2", "note 1, a, b, DEEP, note 2, c"),
    ],
)
def test_depths_count_messages_and_what_is_frozen_before_one_stays_with_it(
    decorator: str, order: str
) -> None:
    first, reply, second = conversation(("user", "a"), ("assistant", "b"), ("user", "c"))
    history = [
        *with_texts(first, (FrozenText(name="note", text="note 1"),), takes_leads=True),
        reply,
        *with_texts(second, (FrozenText(name="note", text="note 2"),), takes_leads=True),
    ]
    book = read_lorebook({"entries": [entry("deep", f"{decorator}\nDEEP")]})
    assert book is not None
    found = placed(
        book.entries,
        Placed(front=[], history=history, after=[]),
        namespace=TENANT.encode(),
        written=lambda one: one.content,
    )
    assert ", ".join(message.content for message in found.history) == order


def test_a_format_without_system_texts_between_messages_has_lore_in_the_message() -> None:
    (bare,) = conversation(("user", "Hello"))
    message = replace(bare, token_ids=b"\1\0\0\0")
    lore = (FrozenText(name="a", text="One.", entry="7"), FrozenText(name="b", text="Two."))
    (folded,) = with_texts(message, lore, takes_leads=False)
    assert folded.content == "One.\n\nTwo.\n\nHello"
    assert folded.token_ids is None  # those of the message alone
    lead, kept = with_texts(message, lore, takes_leads=True)
    assert (lead.role, lead.name, lead.content) == ("system", "lore: a, b", "One.\n\nTwo.")
    assert kept == message
