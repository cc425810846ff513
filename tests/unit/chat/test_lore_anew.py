"""Entries that stand anew in every prompt and ask about the turns before; books that are much work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from appliance.chat.catalog import Catalog
from appliance.chat.conversations import Conversations
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.prompt_view import PromptView
from appliance.chat.prompting import OFF_LOOP_CHARS_MIN
from appliance.chat.turn import Turns
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.bundle import card_bundle
from appliance.prompt.cards.reading import read_card
from appliance.prompt.characters import Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.lore.placement import Placement
from appliance.tokens import unpack
from tests.card_fixtures import encoded, v3
from tests.characters import bundle_of, characters_of, with_lore
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.formats import written

LONG = "x" * 330


def entry(name: str, said: str, key: str = "owl") -> dict[str, Any]:
    return {"name": name, "keys": [key], "content": f"{said}\nTEXT OF {name}", "extensions": {}}


ENTRIES = [
    entry("kept", "@@keep_activate_after_match"),
    entry("once", "@@dont_activate_after_match"),
    entry("early", "@@ignore_on_max_context", key="fox"),
    entry("first", "@@is_greeting 0", key="fox"),
    entry("second", "@@is_greeting 1", key="fox"),
    entry("plain", ""),
]
BOOK = {"scan_depth": 1, "entries": ENTRIES, "extensions": {}}
MANY = {
    "entries": [
        {"content": f"{n} " + "y" * 40, "constant": True} for n in range(OFF_LOOP_CHARS_MIN // 40)
    ]
}


def card(**fields: Any) -> Bundle:
    wish = {"appliance": {"lore_placement": "as_written"}}
    document = v3(
        name="Mira",
        first_mes="Good evening.",
        alternate_greetings=["Good night."],
        character_book=BOOK,
        extensions=wish,
        **fields,
    )
    return card_bundle(read_card(encoded(document)), "mira")


@pytest.fixture
def characters() -> Characters:
    plain = bundle_of("assistant", system="Be brief.")
    moving = bundle_of("mover", system="Be brief.", lore_placement="as_written")
    many = with_lore(bundle_of("many", system="Be brief."), MANY)
    return characters_of(plain, with_lore(moving, BOOK), many, card())


class Chat:
    def __init__(
        self,
        turns: Turns,
        conversations: Conversations,
        engine: ScriptedEngine,
        model: ModelText,
        vocabulary: Vocabulary,
    ) -> None:
        self.turns, self.conversations, self.engine = turns, conversations, engine
        self.chat_format = model.chat_format
        engine.script = vocabulary.script("one")

    async def open(self, character: str) -> None:
        held = await self.conversations.open(tenant=TENANT, character=character)
        self.opened = held.conversation_id

    async def say(self, text: str, **fields: Any) -> list[str]:
        """The names of the entries in the prompt, which is also what it is computed to be again."""
        _, _, done = await read(send(self.turns, self.opened, text, **fields))
        assert done.message is not None
        sent = self.engine.generated[-1].token_ids
        again = await PromptView(self.turns.prompts).prompt_of(
            tenant=TENANT, conversation_id=self.opened, message_id=done.message.message_id
        )
        assert again.token_ids == sent
        return found(written(self.chat_format, unpack(sent)), ENTRIES)


def found(text: str, entries: Sequence[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in entries if f"TEXT OF {one['name']}" in text]


@pytest.fixture
async def chat(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    model: ModelText,
    vocabulary: Vocabulary,
) -> Chat:
    return Chat(turns, conversations, engine, model, vocabulary)


async def test_an_entry_goes_by_what_the_turns_before_called_up(chat: Chat) -> None:
    await chat.open("mover")
    said = [await chat.say(text) for text in ("Hello", "An owl", "Nothing", "An owl again", "Bye")]
    assert said == [
        [],
        ["kept", "once", "plain"],
        ["kept"],
        ["kept", "plain"],
        ["kept"],
    ]


async def test_an_entry_goes_by_whether_the_window_has_been_full(chat: Chat) -> None:
    await chat.open("mover")
    assert "early" in await chat.say("A fox")
    messages = []
    for number in range(7):
        messages.append(await chat.say(f"{number} a fox {LONG}"))
    held = await chat.conversations.get(tenant=TENANT, conversation_id=chat.opened)
    assert held.anchor_id is not None
    assert "early" in messages[0]
    assert "early" not in await chat.say("A fox")
    # Of a branch that is short its own replies say that nothing was cut.
    _, first, *_ = await chat.conversations.messages(tenant=TENANT, conversation_id=chat.opened)
    assert "early" in await chat.say("A fox", parent=first.message_id)


async def test_an_entry_goes_by_the_greeting_and_a_card_may_ask_for_this_placement(
    chat: Chat, catalog: Catalog
) -> None:
    assert catalog.current.get("mira").lore.placement is Placement.AS_WRITTEN
    await chat.open("mira")
    greetings = await chat.conversations.messages(tenant=TENANT, conversation_id=chat.opened)
    for greeting, name in zip(greetings, ("first", "second"), strict=True):
        said = await chat.say("A fox", parent=greeting.message_id)
        assert said == ["early", name]
        assert await chat.say("Nothing") == []
        assert await chat.say("A fox") == ["early", name]


def test_a_card_that_asks_for_no_known_placement_is_warned_of() -> None:
    for wish in ("up", 7, ["frozen"]):
        extensions = {"appliance": {"lore_placement": wish}}
        read = read_card(encoded(v3(name="M", extensions=extensions)))
        assert read.lore_placement == "frozen"
        (warning,) = read.warnings
        assert "lore_placement: expected one of frozen, as_written" in warning
    silent: tuple[Any, ...] = (None, [], {"appliance": None}, {"appliance": {}})
    for odd in silent:
        assert read_card(encoded(v3(name="M", extensions=odd))).warnings == ()


@pytest.mark.parametrize(("character", "is_aside"), [("many", True), ("assistant", False)])
async def test_a_book_that_is_much_work_holds_up_no_other_chat(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, character: str, is_aside: bool
) -> None:
    threads = []
    heard = Lorekeeper.heard

    def recorded(self: Lorekeeper, *rest: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return heard(self, *rest)

    monkeypatch.setattr(Lorekeeper, "heard", recorded)
    await chat.open(character)
    await chat.say("Hello")
    assert threads == [is_aside]
