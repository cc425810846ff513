"""A replay hears each message by the lore of each version, so that its figures are those of its chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from appliance.chat.conversations import Conversations
from appliance.chat.prompt_replay import Replayed, prompt_replay
from appliance.chat.turn import Turns
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import Characters
from appliance.store.records import Note, Scene
from tests.characters import bundle_of, characters_of, with_lore
from tests.scripted_engine import ScriptedEngine
from tests.unit.chat.conftest import Vocabulary
from tests.unit.chat.driver import TENANT, read, send

TEXTS = (
    "An owl!",
    "Where is the hill?",
    "Another owl!",
    "And now?",
    "The hill.",
    "Good night, owl.",
)


def book(*entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"entries": [{"name": one["keys"][0], **one} for one in entries]}


OWLS = {"keys": ["owl"], "content": "Owls are awake. " * 6}
HILL = {"keys": ["hill"], "content": "Dragons sleep under the hill. " * 3}
PLAIN = bundle_of("assistant", system="You keep the light.")
LORE = {
    "plain": PLAIN,
    "owls": with_lore(PLAIN, book(OWLS)),
    "both": with_lore(PLAIN, book(OWLS, HILL)),
    "anew": with_lore(
        bundle_of("assistant", system="You keep the light.", lore_placement="as_written"),
        book(OWLS, HILL),
    ),
}


@pytest.fixture
def characters() -> Characters:
    return characters_of(LORE["plain"])


async def recorded(
    turns: Turns, conversations: Conversations, bundle: Bundle, texts: Sequence[str]
) -> int:
    """The prompt tokens of a chat that is held with a version."""
    turns.prompts.builder.catalog._current = characters_of(bundle)
    scene = Scene(note=Note(text="Stay calm.", every=2))
    opened = await conversations.open(tenant=TENANT, scene=scene)
    sent = [await read(send(turns, opened.conversation_id, text)) for text in texts]
    return sum(started.prompt_tokens for started, _, _ in sent)


async def replayed(turns: Turns, old: Bundle, new: Bundle) -> Sequence[Replayed]:
    prompts = turns.prompts
    found = await prompt_replay(prompts.paths, prompts.builder, old, new, conversations=10)
    return found.conversations


@pytest.mark.parametrize("longer", [1, 25])
async def test_a_chat_replayed_under_another_version_is_as_if_it_had_been_held_with_it(
    turns: Turns,
    conversations: Conversations,
    engine: ScriptedEngine,
    vocabulary: Vocabulary,
    longer: int,
) -> None:
    engine.script = vocabulary.script("one")
    # Of long messages some are cut, and what they had called up may be called up again.
    texts = [text + " So it is." * longer for text in TEXTS]
    held = {
        name: await recorded(turns, conversations, bundle, texts) for name, bundle in LORE.items()
    }
    assert len(set(held.values())) == len(LORE), "each is another chat"
    for old, new in product(LORE, LORE):
        for one in await replayed(turns, LORE[old], LORE[new]):
            assert (one.before.tokens, one.after.tokens) == (held[old], held[new]), (old, new)
    frozen = (await replayed(turns, LORE["both"], LORE["anew"]))[0]
    assert frozen.before.hit_tokens > frozen.after.hit_tokens, "what stands anew is computed anew"
    assert (frozen.before.cuts > 0) == (longer > 1)
