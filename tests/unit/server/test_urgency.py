"""Priority, deadline and tenant on their way to the engine, and what the engine says back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.door import Door, chat


async def test_every_request_tells_the_engine_its_tenant_and_priority(door: Door) -> None:
    door.say("ok")
    await door.complete()
    await door.complete(priority="batch", tenant="somebody else", user="somebody else")
    plain, batch = door.engine.generated
    assert (plain.tenant, plain.priority, plain.deadline_ms) == (b"local", "interactive", None)
    assert (batch.tenant, batch.priority) == (b"local", "batch")


async def test_the_engine_gets_what_is_left_of_the_deadline(door: Door) -> None:
    door.say("ok")
    for asked in (2_000, 3_600_000):
        assert (await door.complete(deadline_ms=asked))[0] == 200
        left = door.engine.generated[-1].deadline_ms
        assert left is not None
        assert asked - 1_900 < left < asked
    assert (await door.complete(deadline_ms=None, priority=None))[0] == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "urgent"),
        ("priority", 1),
        ("deadline_ms", 0),
        ("deadline_ms", 3_600_001),
        ("deadline_ms", 1.5),
        ("deadline_ms", "soon"),
    ],
)
async def test_a_priority_or_deadline_out_of_range_is_refused_by_its_path(
    door: Door, field: str, value: Any
) -> None:
    status, told = await door.complete(**{field: value})
    assert (status, told["error"]["param"]) == (400, field)


async def test_a_missed_deadline_is_504_before_the_first_byte_and_an_event_after(
    door: Door,
) -> None:
    door.say(fails="deadline_exceeded", is_admitted=False)
    for stream in (False, True):
        status, told = await door.complete(deadline_ms=60_000, stream=stream)
        assert (status, told["error"]["code"]) == (504, "deadline_exceeded")
        assert told["error"]["type"] == "timeout_error"
    door.say("one", fails="deadline_exceeded")
    streamed = await door.stream_chat(deadline_ms=60_000)
    assert (streamed.status, streamed.text) == (200, "one")
    assert streamed.chunks[-1]["error"]["code"] == "deadline_exceeded"


async def test_a_full_queue_says_in_the_header_when_to_come_back(door: Door) -> None:
    door.say(fails="overloaded", retry_after_s=37, is_admitted=False)
    for path, body in (
        ("/v1/chat/completions", chat()),
        ("/v1/chat/completions", {**chat(), "stream": True}),
    ):
        async with door.session.post(door.url + path, json=body) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "37")


async def test_a_stored_turn_has_the_same_fields(stored_door: Door) -> None:
    door = stored_door
    _, conversation = await door.post("/api/conversations", {})
    path = f"/api/conversations/{conversation['id']}"
    door.say("one")
    body = {"text": "x", "priority": "batch", "deadline_ms": 60_000}
    await door.stream(path + "/messages", body)
    await door.stream(path + "/regenerate", {"priority": "batch"})
    sent, again = door.engine.generated
    assert (sent.tenant, sent.priority, again.priority) == (b"local", "batch", "batch")
    assert sent.deadline_ms is not None
    assert again.deadline_ms is None
    status, told = await door.post(path + "/messages", {"text": "x", "priority": "urgent"})
    assert (status, told["error"]["param"]) == (400, "priority")
    door.say(fails="deadline_exceeded", is_admitted=False)
    status, told = await door.post(path + "/messages", {"text": "y", "deadline_ms": 60_000})
    assert (status, told["error"]["code"]) == (504, "deadline_exceeded")
    async with door.session.get(door.url + path) as answer:
        texts = [message["text"] for message in (await answer.json())["messages"]]
    assert texts == ["x", "one", "one"]
