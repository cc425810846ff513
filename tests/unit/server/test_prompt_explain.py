"""What explains a stored turn: its parts, what was cut, and what broke the prefix, by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from appliance.chat.events import TurnDone
from appliance.chat.plan import Place
from appliance.cli.main import main
from appliance.prompt.characters import Character
from appliance.prompt.templates.compiling import template_of
from appliance.server.auth import LOCAL_TENANT
from appliance.store.records import Message
from tests.engine_fixtures import decoder, model_directory
from tests.unit.server.moved_catalog import move_all
from tests.unit.server.test_admin import SHORT, Operator, operator, server

__all__ = ["decoder", "model_directory", "operator", "server"]

_TEMPLATE = """\
name: moody
inputs:
  character: {type: map, scope: character}
  mood: {type: text, default: calm}
---
- {name: who, zone: character, role: system, content: "You are {{ character.name }}."}
- {name: mood, zone: pinned, role: system, content: "You are {{ mood }}."}
- {name: example, zone: pinned, role: system, truncation_priority: 2, content: Say yes or no.}
- {name: history, zone: history}
"""


async def say(
    operator: Operator,
    conversation: UUID,
    text: str,
    *,
    parent: UUID | Place | None = Place.HEAD,
) -> Message:
    """A turn; the stored reply."""
    events = operator.services.turns.send(
        tenant=LOCAL_TENANT,
        conversation_id=conversation,
        text=text,
        parent=parent,
        turn_key=None,
        params=SHORT,
    )
    *_, done = [event async for event in events]
    assert isinstance(done, TurnDone)
    assert done.message is not None
    return done.message


async def swipe(operator: Operator, conversation: UUID, reply: UUID) -> Message:
    events = operator.services.turns.regenerate(
        tenant=LOCAL_TENANT,
        conversation_id=conversation,
        message_id=reply,
        params=replace(SHORT, sampling=replace_temperature()),
    )
    *_, done = [event async for event in events]
    assert isinstance(done, TurnDone)
    assert done.message is not None
    return done.message


def replace_temperature() -> Any:
    """Another reply than the greedy one."""
    from appliance.wire.frames import Sampling

    return Sampling(temperature=1.0, seed=7, logit_bias=SHORT.sampling.logit_bias)


async def explain(operator: Operator, conversation: UUID, reply: UUID | None = None) -> Any:
    """What `appliance prompt explain --json` prints."""
    words = ["prompt", "explain", str(conversation), *([] if reply is None else [str(reply)])]
    return json.loads(await run(operator, *words, "--json"))


async def run(operator: Operator, *words: str, code: int = 0) -> str:
    assert await asyncio.to_thread(main, [*words, "--config", str(operator.config)]) == code
    out, err = operator.capsys.readouterr()
    return err or out


def with_template(operator: Operator, mood: str = "calm", name: str = "Mo") -> None:
    """The character of the next turns, as if its files had been changed."""
    template = template_of(_TEMPLATE.replace("default: calm", f"default: {mood}"), "moody.yaml")
    character = Character(id="assistant", name=name, template="moody")
    move_all(operator.services.turns.planner, character, template)


async def test_a_chat_with_cuts_swipes_and_edits_is_explained_turn_by_turn(
    operator: Operator,
) -> None:
    with_template(operator)
    opened = await operator.open()
    replies = [await say(operator, opened, f"Question {number}?") for number in range(12)]
    causes = []
    for reply in replies:
        told = await explain(operator, opened, reply.message_id)
        assert told["is_as_sent"]
        assert sum(part["tokens"] for part in told["parts"]) == told["tokens"]
        assert sum(part["cached"] for part in told["parts"]) == told["cached_tokens"]
        assert told["tokens"] == reply.prompt_tokens
        assert told["window_tokens"] <= told["limit"] - told["reserve"]
        assert told["parts_dropped"] == (["example"] if told["messages_dropped"] else [])
        assert (told["context_begins_at"] is None) == (told["messages_dropped"] == 0)
        if told["cause"] == "goes on":
            assert told["shared_tokens"] <= told["cached_tokens"]
            assert told["first_difference"] is None
        causes.append(told["cause"])
    assert causes[0] == "first turn"
    assert set(causes[1:]) == {"goes on", "cut"}
    assert 1 < causes.count("cut") < 5
    last = await explain(operator, opened)
    assert last["message_id"] == str(replies[-1].message_id)
    assert [part["name"] for part in last["parts"][:2]] == ["who", "mood"]
    assert last["parts"][2]["message_id"] == last["context_begins_at"]
    assert last["parts"][-1]["name"] == "reply header"
    printed = await run(operator, "prompt", "explain", str(opened))
    assert f"cut      {last['messages_dropped']} messages at the front, example" in printed
    assert "You are Mo" not in printed


async def test_what_broke_the_prefix_has_a_name(operator: Operator) -> None:
    with_template(operator)
    opened = await operator.open()
    first = await say(operator, opened, "One?")
    second = await say(operator, opened, "Two?")
    assert (await explain(operator, opened))["cause"] == "goes on"
    third = await say(operator, opened, "Other?", parent=first.message_id)
    told = await explain(operator, opened, third.message_id)
    assert (told["cause"], told["detail"]) == ("edited message", "message 3")
    assert told["first_difference"]["part"] == "message 3"
    assert told["first_difference"]["before"] != told["first_difference"]["asked"]
    again = await swipe(operator, opened, first.message_id)
    told = await explain(operator, opened, again.message_id)
    assert (told["cause"], told["shared_tokens"]) == ("goes on", told["tokens"])
    assert again.text != first.text
    third = await say(operator, opened, "Other?", parent=first.message_id)
    told = await explain(operator, opened, third.message_id)
    assert (told["cause"], told["detail"]) == ("other reply", "message 2")
    assert second.message_id != third.message_id


async def test_a_change_before_the_history_is_named_by_variable_or_version(
    operator: Operator,
) -> None:
    with_template(operator)
    opened = await operator.open()
    await say(operator, opened, "One?")
    with_template(operator, name="Ma")
    reply = await say(operator, opened, "Two?", parent=None)
    told = await explain(operator, opened, reply.message_id)
    assert (told["cause"], told["detail"]) == ("template variable", "who, character")
    with_template(operator, mood="cross", name="Ma")
    reply = await say(operator, opened, "Three?", parent=None)
    told = await explain(operator, opened, reply.message_id)
    assert told["cause"] == "character version"
    assert told["detail"].startswith("mood, ")
    # Of a turn that this process did not make, the size alone tells.
    operator.services.turns.fronts._known.clear()
    with_template(operator, mood="very cross", name="Ma")
    assert (await explain(operator, opened, reply.message_id))["cause"] == "changed since"
    assert "this is not what was sent" in await run(operator, "prompt", "explain", str(opened))


async def test_what_was_evicted_is_told_from_what_was_changed(operator: Operator) -> None:
    opened = await operator.open()
    await say(operator, opened, "One?")
    await operator.services.cache_view.purge(tenant=LOCAL_TENANT, conversation_id=opened)
    await say(operator, opened, "Two?")
    assert (await explain(operator, opened))["cause"] == "evicted"


async def test_bad_questions_are_refused_by_name(operator: Operator) -> None:
    opened = await operator.open()
    assert "no reply yet" in await run(operator, "prompt", "explain", str(opened), code=2)
    reply = await say(operator, opened, "One?")
    assert reply.parent_id is not None
    user = str(reply.parent_id)
    assert "not a reply" in await run(operator, "prompt", "explain", str(opened), user, code=2)
    unknown = str(UUID(int=1))
    assert "no message" in await run(operator, "prompt", "explain", str(opened), unknown, code=2)


@pytest.fixture(autouse=True)
def restored(operator: Operator) -> Iterator[None]:
    """The planner's catalog is its own again."""
    before = operator.services.turns.planner.catalog
    yield
    object.__setattr__(operator.services.turns.planner, "catalog", before)
