"""A purge in front of a real engine: of all that a conversation ever sent, nothing of its own stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import pytest

from appliance.chat.plan import conversation_key
from appliance.chat.prompt_starts import FRONTS_MAX
from appliance.prompt.bundle import Bundle
from appliance.server.auth import LOCAL_TENANT
from appliance.store.records import Note, Persona, Scene
from appliance.tokens import count, head, tail
from appliance.wire.frames import Explain, Explained, Generate
from tests.characters import bundle_of, with_lore
from tests.engine_fixtures import decoder, model_directory
from tests.unit.server.moved_catalog import move_all
from tests.unit.server.test_admin import Operator, operator, server
from tests.unit.server.test_prompt_explain import say

__all__ = ["decoder", "model_directory", "operator", "server"]

TOM = Persona(name="Tom", text="A sailor of forty.")
ANN = Persona(name="Ann", text="A diver of thirty.")


@pytest.fixture
def sent(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> list[Generate]:
    """What engines were asked, each with its whole prompt."""
    frames: list[Generate] = []
    engine = operator.services.engine
    generate = engine.generate

    def recorded(request: Generate, *rest: Any, **options: Any) -> Any:
        frames.append(request)
        # Without a place to go on from, every request holds all of its prompt.
        return generate(request, *rest, **options)

    monkeypatch.setattr(engine, "generate", recorded)
    monkeypatch.setattr(operator.services.turns.tips, "get", lambda *_: None)
    return frames


async def set_scene(operator: Operator, opened: UUID, **fields: Any) -> None:
    conversations = operator.services.conversations
    conversation = await conversations.get(tenant=LOCAL_TENANT, conversation_id=opened)
    scene = msgspec.structs.replace(conversation.scene, **fields)
    await conversations.change(conversation, scene=scene)


async def left_of(operator: Operator, opened: UUID, frame: Generate) -> str:
    """What of a prompt is still cached, of the tenant's part of it."""
    public = frame.stretches[0][1] if frame.stretches[0][0] == b"public" else 0
    last = tail(frame.token_ids, count(frame.token_ids) - 1)
    *before, (namespace, tokens) = frame.stretches
    answer = await operator.services.engine.question(
        conversation_key(LOCAL_TENANT, opened),
        Explain(token_ids=frame.token_ids + last, stretches=[*before, (namespace, tokens + 1)]),
        timeout_s=30,
    )
    assert isinstance(answer, Explained)
    found = head(frame.token_ids, answer.hit_tokens)
    return operator.services.tokenizer.decode(tail(found, public))


async def purged(operator: Operator, opened: UUID, sent: list[Generate]) -> set[str]:
    """What is left of each prompt after a purge; all of them were cached before."""
    frames = list(sent)
    assert all([await left_of(operator, opened, frame) for frame in frames])
    view = operator.services.cache_view
    assert await view.purge(tenant=LOCAL_TENANT, conversation_id=opened) > 0
    return {await left_of(operator, opened, frame) for frame in frames}


def assert_only_format(left: set[str]) -> None:
    """Of the chat format's own words at most; `user` and `system` are roles."""
    words = {word for text in left for word in text.replace("\n", " ").split()}
    assert words <= {"user", "system", "assistant"}, words


async def test_personas_and_pinned_texts_of_earlier_turns_are_found(
    operator: Operator, sent: list[Generate]
) -> None:
    opened = await operator.open()
    other = await operator.open()
    await say(operator, other, "hello, this is of another chat")
    kept = len(sent)
    scenes: tuple[Mapping[str, Any], ...] = (
        {"persona": TOM},
        {"persona": ANN, "note": Note(text="Be grim.")},
        {"persona": None, "pinned": ("The key is under the mat.",)},
        {"persona": None, "pinned": (), "note": Note(text="Be kind.", every=1)},
        {"persona": None, "pinned": (), "note": None},
    )
    for number, scene in enumerate(scenes):
        await set_scene(operator, opened, **scene)
        await say(operator, opened, f"{number} hello from me")
    assert_only_format(await purged(operator, opened, sent[kept:]))
    assert "another chat" in await left_of(operator, other, sent[0])


BOOK = {
    "entries": [
        {"name": "top", "keys": ["ship"], "content": "Ships sail.", "position": "before_char"},
        {"name": "below", "keys": ["tree"], "content": "Trees grow."},
        {"name": "deep", "keys": ["star"], "content": "@@depth 9\n@@role user\nStars shine."},
        {"name": "frozen", "keys": ["rain"], "content": "@@depth 1\nRain falls."},
    ]
}


def keeper_of(**fields: Any) -> Bundle:
    return with_lore(bundle_of("assistant", system="You keep the light.", **fields), BOOK)


@pytest.mark.parametrize("placement", ["frozen", "as_written"])
async def test_lore_before_the_messages_is_found(
    operator: Operator, sent: list[Generate], placement: str
) -> None:
    await move_all(operator.services, keeper_of(lore_placement=placement))
    opened = await operator.open()
    for text in ("a ship", "a tree", "a star", "the rain", "nothing", "still nothing", "bye"):
        await say(operator, opened, text)
    assert_only_format(await purged(operator, opened, sent))


async def test_a_private_greeting_and_branches_behind_it_are_found(
    operator: Operator, sent: list[Generate]
) -> None:
    await move_all(operator.services, keeper_of(greeting="You made it!"))
    opened = await operator.open()
    greeting = (
        await operator.services.conversations.get(tenant=LOCAL_TENANT, conversation_id=opened)
    ).head_id
    await say(operator, opened, "hello there")
    await say(operator, opened, "good day", parent=greeting)
    await say(operator, opened, "from the start", parent=None)
    assert_only_format(await purged(operator, opened, sent))


async def test_what_a_conversation_has_lost_drops_all_that_is_the_tenants(
    operator: Operator, sent: list[Generate]
) -> None:
    opened, other = await operator.open(), await operator.open()
    await say(operator, other, "hello, this is of another chat")
    reply = await say(operator, opened, "a secret of mine")
    assert reply.parent_id is not None
    await say(operator, opened, "and more")
    await operator.services.conversations.delete_branch(
        tenant=LOCAL_TENANT, conversation_id=opened, message_id=reply.parent_id
    )
    assert_only_format(await purged(operator, opened, sent))


async def test_a_message_behind_others_may_go_and_the_rest_is_still_told_apart(
    operator: Operator, sent: list[Generate]
) -> None:
    opened, other = await operator.open(), await operator.open()
    await say(operator, other, "hello, this is of another chat")
    await say(operator, opened, "a first word")
    second = await say(operator, opened, "a second word")
    assert second.parent_id is not None
    await operator.services.conversations.delete_branch(
        tenant=LOCAL_TENANT, conversation_id=opened, message_id=second.parent_id
    )
    assert_only_format(await purged(operator, opened, sent[1:]))
    assert "another chat" in await left_of(operator, other, sent[0])


async def test_more_scenes_than_are_kept_drop_all_that_is_the_tenants(
    operator: Operator, sent: list[Generate]
) -> None:
    opened = await operator.open()
    await set_scene(operator, opened, persona=TOM)
    await say(operator, opened, "hello from Tom")
    for number in range(34):
        await set_scene(operator, opened, persona=Persona(name=f"N{number}"))
    past = await operator.services.turns._ledger.past(LOCAL_TENANT, opened)
    assert (len(past.scenes), past.is_untraceable) == (32, True)
    assert Scene(persona=TOM) not in past.scenes
    assert len(past.scenes) <= FRONTS_MAX
    assert_only_format(await purged(operator, opened, sent))
