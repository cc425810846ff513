"""Lore where branches of one conversation are cut at different places: each has its own cut."""

from __future__ import annotations

from uuid import UUID

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.events import TurnDone, TurnStarted
from appliance.chat.lore import anchor_on
from appliance.chat.params import GenerationParams
from appliance.chat.plan import Place
from appliance.chat.turn import Turns
from appliance.prompt.characters import Characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.store.ledger import Ledger
from appliance.store.records import Message
from appliance.tokens import unpack
from tests.characters import bundle_of, characters_of, with_lore
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send
from tests.unit.prompt.formats import written

DRAGONS = "Dragons sleep under the hill."
LATER = "Old owls remember."
BOOK = {
    "entries": [
        {"name": "Dragons", "keys": ["dragon"], "content": DRAGONS},
        {"name": "Owls", "keys": ["owl"], "content": f"@@ignore_on_max_context\n{LATER}"},
    ]
}
LONG = "x" * 330
"""A token a character: some four of them fill the window."""


@pytest.fixture
def characters() -> Characters:
    return characters_of(with_lore(bundle_of("assistant", system="Be brief."), BOOK))


class Chat:
    """A conversation whose turns are computed without what the one before left, as after a restart."""

    def __init__(
        self, turns: Turns, opened: UUID, engine: ScriptedEngine, model: ModelText
    ) -> None:
        self.turns, self.opened, self.engine, self.model = turns, opened, engine, model

    async def say(
        self, text: str, *, below: UUID | None = None, is_known: bool = False
    ) -> tuple[TurnStarted, UUID, str]:
        """A turn: how it began, its reply, and the prompt."""
        if not is_known:
            self.turns.tips.put((TENANT, self.opened), None)
        parent = Place.HEAD if below is None else below
        started, _, done = await read(send(self.turns, self.opened, text, parent=parent))
        return started, reply_of(done), self.prompt()

    def prompt(self) -> str:
        frame = self.engine.generated[-1]
        return written(self.model.chat_format, unpack(frame.token_ids))


def reply_of(done: TurnDone) -> UUID:
    assert done.message is not None
    return done.message.message_id


@pytest.fixture
async def chat(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    model: ModelText,
) -> Chat:
    engine.script = vocabulary.script("one")
    opened = (await conversations.open(tenant=TENANT)).conversation_id
    return Chat(turns, opened, engine, model)


async def test_a_short_branch_of_a_conversation_that_was_cut_has_its_lore_once(chat: Chat) -> None:
    started, _, _ = await chat.say("A dragon! " + LONG)
    places = []
    for number in range(7):
        started, reply, text = await chat.say(f"{number} {LONG}")
        places.append((started.messages_dropped, reply, text))
    assert places[-1][0], "the long branch is cut"
    # The last turn of the trunk that was not: the cut of the other branch lies before it.
    short = max(index for index, (dropped, _, _) in enumerate(places) if not dropped) - 1
    started, reply, text = await chat.say("And the dragon, the owl?", below=places[short][1])
    assert (started.messages_dropped, text.count(DRAGONS)) == (0, 1)
    assert text.count(LATER) == 1, "the window of this branch was never full"
    again = chat.turns.regenerate(
        tenant=TENANT,
        conversation_id=chat.opened,
        message_id=reply,
        params=GenerationParams(),
    )
    await read(again)
    assert chat.prompt() == text
    _, _, text = await chat.say("dragon?")
    assert text.count(DRAGONS) == 1


async def test_a_message_that_calls_up_what_its_own_cut_takes_away_has_it(chat: Chat) -> None:
    await chat.say("A dragon! " + LONG)
    dropped, number = 0, 0
    while not dropped:
        number += 1
        started, _, text = await chat.say(f"{number} {LONG} dragon", is_known=number % 2 == 0)
        dropped = started.messages_dropped or 0
        assert text.count(DRAGONS) == 1


async def test_two_branches_that_are_cut_each_know_what_their_own_prompts_hold(
    chat: Chat, ledger: Ledger
) -> None:
    _, root, _ = await chat.say("Hello " + LONG)
    _, here, _ = await chat.say("A dragon! " + LONG)
    ends = []
    for branch in "ab":
        at, dropped = here, 0
        for number in range(8):
            started, at, text = await chat.say(f"{branch}{number} {LONG}", below=at)
            dropped = started.messages_dropped or 0
        assert dropped
        assert DRAGONS not in text, "its turn is cut away"
        ends.append(at)
    # The conversation's anchor is that of the second branch alone.
    _, _, text = await chat.say("Where is the dragon, where the owl?", below=ends[0])
    assert text.count(DRAGONS) == 1
    assert LATER not in text, "this window has been full"
    _, _, text = await chat.say("A dragon?", is_known=True)
    assert text.count(DRAGONS) == 1
    # Back at the trunk, where nothing is cut.
    _, _, text = await chat.say("A dragon and an owl", below=here)
    assert (text.count(DRAGONS), text.count(LATER)) == (1, 1)
    _, _, text = await chat.say("A dragon", below=root)
    assert text.count(DRAGONS) == 1
    path = await ledger.path(TENANT, chat.opened, ends[1])
    anchors = [message.anchor_id for message in path if message.role == "assistant"]
    assert anchors[:2] == [None, None]
    assert anchors[-1] is not None
    ids = [message.message_id for message in path]
    known = [ids.index(anchor) for anchor in anchors if anchor is not None]
    assert known == sorted(known), "a cut only moves forward"


async def test_turns_that_go_on_keep_the_anchor_of_the_one_before(
    chat: Chat, ledger: Ledger
) -> None:
    for number in range(6):
        started, end, _ = await chat.say(f"{number} {LONG}", is_known=True)
    assert started.messages_dropped
    _, end, _ = await chat.say("short", is_known=True)
    path = await ledger.path(TENANT, chat.opened, end)
    anchors = [message.anchor_id for message in path if message.role == "assistant"]
    assert anchors[-1] == anchors[-2] is not None


async def test_a_conversation_from_before_anchors_were_kept_with_replies_has_its_own(
    chat: Chat, ledger: Ledger
) -> None:
    await chat.say("A dragon! " + LONG)
    for number in range(6):
        _, end, _ = await chat.say(f"{number} {LONG}")
    held = await ledger.get(TENANT, chat.opened)
    assert held.anchor_id is not None
    async with ledger._pool.acquire() as connection:
        await connection.execute(
            "UPDATE appliance.messages SET anchor_id = NULL, scene_digest = NULL"
        )
    path: tuple[Message, ...] = await ledger.path(TENANT, chat.opened, end)
    assert anchor_on(path, held.anchor_id) == held.anchor_id
    _, _, text = await chat.say("A dragon?")
    assert text.count(DRAGONS) == 1
