"""The native conversation API over real HTTP and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from appliance.chat.params import CONVERSATION_SAMPLING
from appliance.wire.frames import Sampling
from tests.raw_http import connect
from tests.unit.server.door import Door, Streamed


async def create(door: Door, **fields: Any) -> str:
    status, told = await door.post("/api/conversations", fields)
    assert status == 201
    return str(told["id"])


async def get(door: Door, path: str) -> Any:
    async with door.session.get(door.url + path) as answer:
        assert answer.status == 200
        return await answer.json()


async def send(door: Door, conversation_id: str, text: str, **fields: Any) -> Streamed:
    path = f"/api/conversations/{conversation_id}/messages"
    return await door.stream(path, {"text": text, **fields})


@pytest.mark.parametrize("action", ["messages", "regenerate"])
@pytest.mark.parametrize(
    ("named", "sampling"),
    [
        ({}, CONVERSATION_SAMPLING),
        ({"max_tokens": 4, "stop": "x"}, CONVERSATION_SAMPLING),
        ({"temperature": 0}, Sampling(temperature=0)),
        ({"top_k": 0}, Sampling()),
    ],
)
async def test_a_turn_that_names_no_sampling_has_the_calm_one_of_conversations(
    stored_door: Door, action: str, named: dict[str, Any], sampling: Sampling
) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("one")
    await send(door, conversation_id, "x", temperature=1)
    await door.stream(f"/api/conversations/{conversation_id}/{action}", {"text": "y", **named})
    assert len(door.engine.generated) == 2
    assert door.engine.generated[-1].sampling == sampling


async def test_a_turn_is_streamed_and_stored(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("one", " two", prefix_hit_tokens=4)
    streamed = await send(door, conversation_id, "Hello there")
    assert [event.name for event in streamed.events][::3] == ["turn", "done"]
    turn, done = streamed.chunks[0], streamed.chunks[-1]
    assert turn["prefix_hit_tokens"] == 4
    assert streamed.text == "one two"
    assert done["persisted"] is True
    assert done["finish_reason"] == "stop"
    assert done["usage"] == {
        "prompt_tokens": turn["prompt_tokens"],
        "cached_tokens": 4,
        "new_tokens": 2,
    }
    stored = await get(door, f"/api/conversations/{conversation_id}")
    user, reply = stored["messages"]
    assert (user["text"], reply["text"]) == ("Hello there", "one two")
    assert reply["id"] == stored["head_id"] == turn["assistant_message_id"] == done["message"]["id"]
    assert user["id"] == reply["parent_id"] == turn["user_message_id"]
    assert user["on_head_path"]
    assert reply["on_head_path"]
    assert stored["title"] == "Hello there"
    prompt = await get(door, f"/api/conversations/{conversation_id}/messages/{reply['id']}/prompt")
    assert len(prompt["token_ids"]) == turn["prompt_tokens"]
    assert "Hello there" in prompt["text"]


async def test_regenerate_and_edit_make_siblings_and_the_head_can_move(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    path = f"/api/conversations/{conversation_id}"
    door.say("one")
    first = (await send(door, conversation_id, "Hello")).chunks[-1]["message"]
    door.say(" two")
    second = (await door.stream(path + "/regenerate", {})).chunks[-1]["message"]
    assert second["parent_id"] == first["parent_id"]
    door.say(" three")
    third = (await send(door, conversation_id, "Edited", parent_id=None)).chunks[-1]["message"]
    stored = await get(door, path)
    assert len(stored["messages"]) == 5
    assert stored["head_id"] == third["id"]
    async with door.session.patch(
        door.url + path, json={"head_id": first["id"], "title": "T"}
    ) as a:
        assert (await a.json())["head_id"] == first["id"]
    stored = await get(door, path)
    shown = [message["text"] for message in stored["messages"] if message["on_head_path"]]
    assert shown == ["Hello", "one"]
    async with door.session.delete(f"{door.url}{path}/messages/{second['id']}") as answer:
        assert answer.status == 200
    assert len((await get(door, path))["messages"]) == 4
    async with door.session.delete(door.url + path) as answer:
        assert answer.status == 204
    async with door.session.get(door.url + path) as answer:
        assert answer.status == 404


async def test_stop_keeps_what_was_delivered(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    path = f"/api/conversations/{conversation_id}"
    door.say("tok ", forever=True, token_s=0.02)
    running = asyncio.create_task(send(door, conversation_id, "Count", max_tokens=1000))
    await door.eventually(lambda: door.engine.new_tokens > 5)
    status, told = await door.post(path + "/cancel", {})
    assert (status, told) == (202, {"cancelled": True})
    streamed = await asyncio.wait_for(running, 60)
    done = streamed.chunks[-1]
    assert done["finish_reason"] == "cancelled"
    assert done["message"]["text"] == streamed.text != ""
    assert (await door.post(path + "/cancel", {}))[1] == {"cancelled": False}


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_finds_what_it_was_given(stored_door: Door, reset: bool) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("tok ", forever=True, token_s=0.02)
    connection = await connect(door.port)
    await connection.post(
        f"/api/conversations/{conversation_id}/messages", {"text": "Count", "max_tokens": 1000}
    )
    await connection.read_until(b"event: delta", 3)
    connection.close(reset=reset)
    await door.eventually(lambda: door.engine.running == 0)
    await door.eventually(lambda: door.services.streams.running == 0)
    async with asyncio.timeout(60):
        while not (stored := await get(door, f"/api/conversations/{conversation_id}"))["messages"]:
            await asyncio.sleep(0.02)
    _, reply = stored["messages"]
    assert reply["finish_reason"] == "cancelled"
    assert reply["text"].startswith("tok tok tok")


async def test_a_failed_reply_keeps_its_beginning_and_says_so(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("a", "b", fails="insufficient_memory")
    streamed = await send(door, conversation_id, "x")
    assert streamed.events[-1].name == "error"
    assert streamed.chunks[-1]["error"]["code"] == "insufficient_memory"
    _, reply = (await get(door, f"/api/conversations/{conversation_id}"))["messages"]
    assert (reply["text"], reply["finish_reason"]) == ("ab", "failed")


@pytest.mark.parametrize(
    ("path", "raw", "param"),
    [
        ("/messages", rb'{"text":"before\u0000after"}', "text"),
        ("/messages", rb'{"text":"cut \ud83d"}', "text"),
        ("/messages", rb'{"text":""}', "text"),
        ("/messages", rb'{"text":"x","parent_id":"7"}', "parent_id"),
        ("/messages", rb'{"text":"x","temperature":9}', "temperature"),
        ("/regenerate", rb'{"message_id":7}', "message_id"),
        ("", rb'{"title":"t\u0000","metadata":{"k\u0000":"v"}}', "title"),
        ("", rb'{"title":"\ud83d"}', "title"),
    ],
)
async def test_text_that_cannot_be_stored_is_refused_at_the_door(
    stored_door: Door, path: str, raw: bytes, param: str
) -> None:
    door = stored_door
    conversation_id = await create(door)
    target = f"/api/conversations/{conversation_id}{path}" if path else "/api/conversations"
    status, told = await door.post(target, raw)
    assert (status, told["error"]["param"]) == (400, param)
    assert (await get(door, f"/api/conversations/{conversation_id}"))["messages"] == []
    assert len((await get(door, "/api/conversations"))["conversations"]) == 1


async def test_a_nul_that_the_model_writes_is_stored_and_not_lost(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("x", b"\x00", "y")
    streamed = await send(door, conversation_id, "hello")
    assert streamed.events[-1].name == "done"
    _, reply = (await get(door, f"/api/conversations/{conversation_id}"))["messages"]
    assert reply["text"][0] == "x"
    assert reply["text"][-1] == "y"
    assert "\x00" not in reply["text"]
    assert streamed.text == reply["text"], "what was shown is not what is stored"
    door.say("ok")
    assert (await send(door, conversation_id, "again")).events[-1].name == "done"


async def test_lists_are_paged_and_belong_to_their_tenant(stored_door: Door) -> None:
    door = stored_door
    ids = [await create(door, title=f"chat {number}") for number in range(5)]
    first = await get(door, "/api/conversations?limit=3")
    second = await get(door, f"/api/conversations?limit=3&before={first['next']}")
    listed = [item["id"] for item in first["conversations"] + second["conversations"]]
    assert listed == ids[::-1]
    assert second["next"] is None
    for query in ("limit=0", "limit=x", "limit=201", "limit=%C2%B2", "before=x", "before=9e9.x"):
        async with door.session.get(f"{door.url}/api/conversations?{query}") as answer:
            assert answer.status == 400


@pytest.mark.parametrize("path", ["", "/messages/{id}/prompt", "/messages/{id}"])
@pytest.mark.parametrize("name", ["00000000-0000-0000-0000-000000000000", "not-an-id", "%00"])
async def test_what_does_not_exist_is_not_found(stored_door: Door, path: str, name: str) -> None:
    address = f"{stored_door.url}/api/conversations/{name}{path.replace('{id}', name)}"
    async with stored_door.session.get(address) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "not_found"


async def test_the_same_send_again_gives_the_same_turn(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    key = str(uuid4())
    door.say("one")
    first = await send(door, conversation_id, "Hello", turn_key=key, parent_id=None)
    again = await send(door, conversation_id, "Hello", turn_key=key, parent_id=None)
    assert first.chunks[0] == again.chunks[0]
    assert first.chunks[0]["turn_id"] == key
    assert first.chunks[-1]["message"] == again.chunks[-1]["message"]
    assert len(door.engine.generated) == 1


async def test_two_turns_at_once_in_one_conversation_conflict(stored_door: Door) -> None:
    door = stored_door
    conversation_id = await create(door)
    door.say("tok ", forever=True, token_s=0.02)
    running = asyncio.create_task(send(door, conversation_id, "Count", max_tokens=1000))
    await door.eventually(lambda: door.engine.running == 1)
    status, told = await door.post(
        f"/api/conversations/{conversation_id}/messages", json.dumps({"text": "x"}).encode()
    )
    assert (status, told["error"]["code"]) == (409, "conflict")
    await door.post(f"/api/conversations/{conversation_id}/cancel", {})
    await running


async def test_a_conversation_deleted_while_it_streams_ends_the_stream_and_is_gone(
    stored_door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door = stored_door
    conversation_id = await create(door)
    path = f"/api/conversations/{conversation_id}"
    door.say("tok ", forever=True, token_s=0.02)
    running = asyncio.create_task(send(door, conversation_id, "Count", max_tokens=1000))
    await door.eventually(lambda: door.engine.new_tokens > 5)
    async with door.session.delete(door.url + path) as answer:
        assert answer.status == 204
    streamed = await asyncio.wait_for(running, 60)
    assert streamed.events[-1].name == "done"
    assert streamed.chunks[-1]["finish_reason"] == "cancelled"
    assert streamed.chunks[-1]["message"]["text"] == streamed.text != ""
    assert "turn_not_stored" not in caplog.text
    for method in ("GET", "DELETE"):
        async with door.session.request(method, door.url + path) as answer:
            assert answer.status == 404
    assert door.services.turns.running == 0


async def test_a_branch_deleted_while_a_turn_runs_below_it_ends_the_turn_first(
    stored_door: Door,
) -> None:
    door = stored_door
    conversation_id = await create(door)
    path = f"/api/conversations/{conversation_id}"
    door.say("one")
    first = (await send(door, conversation_id, "Hello")).chunks[-1]["message"]
    door.say("tok ", forever=True, token_s=0.02)
    running = asyncio.create_task(send(door, conversation_id, "Count", max_tokens=1000))
    await door.eventually(lambda: door.engine.new_tokens > 5)
    async with door.session.delete(f"{door.url}{path}/messages/{uuid4()}") as answer:
        assert answer.status == 404
    assert not running.done()
    async with door.session.delete(f"{door.url}{path}/messages/{first['id']}") as answer:
        assert answer.status == 200
        assert (await answer.json())["head_id"] == first["parent_id"]
    streamed = await asyncio.wait_for(running, 60)
    assert streamed.chunks[-1]["finish_reason"] == "cancelled"
    (left,) = (await get(door, path))["messages"]
    assert left["id"] == first["parent_id"]
    door.say("ok")
    assert (await send(door, conversation_id, "Still here")).events[-1].name == "done"


async def test_characters_greet_and_an_unknown_one_is_not_found(stored_door: Door) -> None:
    door = stored_door
    characters = (await get(door, "/api/characters"))["characters"]
    assert characters[0]["id"] == "assistant"
    assert characters[0]["suggestions"]
    assert all("system" not in character for character in characters)
    greeting = next(character for character in characters if character["greeting"])
    conversation_id = await create(door, character=greeting["id"])
    (message,) = (await get(door, f"/api/conversations/{conversation_id}"))["messages"]
    assert (message["role"], message["text"]) == ("assistant", greeting["greeting"])
    status, _ = await door.post("/api/conversations", {"character": "nobody"})
    assert status == 404


async def test_metrics_count_and_readiness_explains(stored_door: Door) -> None:
    door = stored_door
    door.say("one", " two", prefix_hit_tokens=2)
    assert (await door.complete())[0] == 200
    ready = await get(door, "/ready")
    assert (ready["ready"], ready["reasons"]) == (True, [])
    assert (ready["journal"]["writes"], ready["journal"]["entries"]) == ("open", 0)
    assert await get(door, "/health") == ready
    async with door.session.get(door.url + "/metrics") as answer:
        text = await answer.text()
    assert 'appliance_tokens_total{kind="generated"} 2.0' in text
    assert 'appliance_tokens_total{kind="prompt_cached"} 2.0' in text
    assert "appliance_engine_up 1.0" in text
    assert "appliance_engine_running 0.0" in text
    assert "appliance_streams_running 0.0" in text
    assert "appliance_journal_entries 0.0" in text
    assert 'appliance_database_writes{state="open"} 1.0' in text
    assert 'appliance_write_batches_total{from="direct"} 0.0' in text
    await door.engine.stop()
    await door.eventually(lambda: not door.services.engine.ready)
    async with door.session.get(door.url + "/ready") as answer:
        assert answer.status == 503
        assert [reason["part"] for reason in (await answer.json())["reasons"]] == ["engine"]
    async with door.session.get(door.url + "/metrics") as answer:
        assert "appliance_engine_up 0.0" in await answer.text()
    await door.engine.start()


async def test_while_the_database_is_away_the_api_says_so_and_chats_without_it_go_on(
    door: Door,
) -> None:
    door.services.readiness.schema_ready = False
    status, told = await door.post("/api/conversations", {})
    assert (status, told["error"]["code"]) == (503, "storage_unavailable")
    door.say("ok")
    assert (await door.complete())[0] == 200
