"""What explains a stored turn: its parts, what was cut, and what broke the prefix, by name."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import UUID

from appliance.chat.events import TurnDone
from appliance.chat.plan import Place
from appliance.cli.main import main
from appliance.server.auth import LOCAL_TENANT
from appliance.store.records import Message, Note, Persona, Scene
from tests.characters import bundle_of
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
- {name: example, zone: pinned, role: system, truncation_priority: 1, content: Say yes or no.}
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


async def with_template(
    operator: Operator, *opened: UUID, mood: str = "calm", name: str = "Mo"
) -> str:
    """The character of new chats, and of `opened`, which move to it; its version."""
    template = _TEMPLATE.replace("default: calm", f"default: {mood}")
    bundle = bundle_of("assistant", name=name, template="moody", templates={"moody": template})
    return await move_all(operator.services, bundle, *opened)


async def test_a_chat_with_cuts_swipes_and_edits_is_explained_turn_by_turn(
    operator: Operator,
) -> None:
    await with_template(operator)
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
        gone = [part["name"] for part in told["parts_dropped"]]
        assert gone == (["example"] if told["messages_dropped"] else [])
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
    (gone,) = last["parts_dropped"]
    printed = await run(operator, "prompt", "explain", str(opened))
    assert (
        f"cut      the {last['messages_dropped']} oldest messages (truncation priority 1)"
        in printed
    )
    assert (
        f"cut      example, {gone['tokens']} tokens: truncation priority 1, goes before" in printed
    )
    assert "You are Mo" not in printed


async def test_what_broke_the_prefix_has_a_name(operator: Operator) -> None:
    await with_template(operator)
    opened = await operator.open()
    first = await say(operator, opened, "One?")
    second = await say(operator, opened, "Two?")
    assert (await explain(operator, opened))["cause"] == "goes on"
    third = await say(operator, opened, "Other?", parent=first.message_id)
    told = await explain(operator, opened, third.message_id)
    assert (told["cause"], told["detail"]) == ("edited message", "message 3")
    assert told["first_difference"]["part"] == "message 3"
    assert told["first_difference"]["found"] != told["first_difference"]["asked"]
    assert told["first_difference"]["message_id"] == str(third.parent_id)
    again = await swipe(operator, opened, first.message_id)
    told = await explain(operator, opened, again.message_id)
    assert (told["cause"], told["shared_tokens"]) == ("goes on", told["tokens"])
    assert again.text != first.text
    third = await say(operator, opened, "Other?", parent=first.message_id)
    told = await explain(operator, opened, third.message_id)
    assert (told["cause"], told["detail"]) == ("other reply", "message 2")
    assert second.message_id != third.message_id


async def test_a_move_to_another_version_is_told_with_the_part_and_both_prompts_as_they_were_sent(
    operator: Operator,
) -> None:
    old = await with_template(operator)
    opened = await operator.open()
    first = await say(operator, opened, "One?")
    new = await with_template(operator, opened, mood="cross")
    second = await say(operator, opened, "Two?")
    told = await explain(operator, opened, second.message_id)
    assert (told["cause"], told["prompt_version"]) == ("character version", new)
    assert told["detail"] == f"mood, {old[:12]} became {new[:12]}"
    assert told["is_as_sent"]
    assert told["cached_tokens"] == told["shared_tokens"] == told["first_difference"]["position"]
    assert told["first_difference"]["asked"].startswith("ross")
    assert told["first_difference"]["found"].startswith("alm")
    told = await explain(operator, opened, first.message_id)
    assert (told["is_as_sent"], told["prompt_version"]) == (True, old)
    third = await say(operator, opened, "Three?")
    assert (await explain(operator, opened, third.message_id))["cause"] == "goes on"
    cached = await operator.ask("explain", str(opened))
    assert cached["cached_tokens"] == cached["tokens"]
    await with_template(operator, opened, mood="very cross")
    cached = await operator.ask("explain", str(opened))
    assert (cached["cause"], cached["detail"]) == ("character version", "mood")


async def test_a_persona_that_changed_is_told(operator: Operator) -> None:
    opened = await operator.open()
    await say(operator, opened, "One?")
    await set_scene(operator, opened, Scene(persona=Persona(name="Tom")))
    second = await say(operator, opened, "Two?")
    told = await explain(operator, opened, second.message_id)
    assert (told["cause"], told["detail"], told["is_as_sent"]) == ("persona", "user", True)
    cached = await operator.ask("explain", str(opened))
    assert cached["cached_tokens"] == cached["tokens"]
    await set_scene(operator, opened, Scene(persona=Persona(name="Ann")))
    told = await explain(operator, opened, second.message_id)
    assert (told["cause"], told["is_as_sent"]) == ("persona", True), "both scenes are left"
    await set_scene(operator, opened, Scene(note=Note(text="Be sad.")))
    third = await say(operator, opened, "Three?")
    await set_scene(operator, opened, Scene(persona=Persona(name="Ann")))
    told = await explain(operator, opened, third.message_id)
    assert (told["cause"], told["is_as_sent"]) == ("scene", False), "what the note said is gone"
    assert (await operator.ask("explain", str(opened)))["cause"] == "persona"


async def set_scene(operator: Operator, opened: UUID, scene: Scene) -> None:
    conversations = operator.services.conversations
    now = await conversations.get(tenant=LOCAL_TENANT, conversation_id=opened)
    await conversations.change(now, scene=scene)


async def test_what_was_evicted_is_told_from_what_was_changed(operator: Operator) -> None:
    opened = await operator.open()
    await say(operator, opened, "One?")
    await operator.services.cache_view.purge(tenant=LOCAL_TENANT, conversation_id=opened)
    await say(operator, opened, "Two?")
    assert (await explain(operator, opened))["cause"] == "evicted"
    await operator.services.cache_view.purge_all()
    await say(operator, opened, "Three?")
    assert (await explain(operator, opened))["cause"] == "cold"


async def test_bad_questions_are_refused_by_name(operator: Operator) -> None:
    opened = await operator.open()
    assert "no reply yet" in await run(operator, "prompt", "explain", str(opened), code=2)
    reply = await say(operator, opened, "One?")
    assert reply.parent_id is not None
    user = str(reply.parent_id)
    assert "not a reply" in await run(operator, "prompt", "explain", str(opened), user, code=2)
    unknown = str(UUID(int=1))
    assert "no message" in await run(operator, "prompt", "explain", str(opened), unknown, code=2)
