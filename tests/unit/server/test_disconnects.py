"""Clients that leave, and clients that do not read: the engine stops, nobody else notices."""

from __future__ import annotations

import asyncio
import logging

import pytest

from appliance.config import ServerConfig
from tests.raw_http import connect
from tests.unit.server.door import LONG, Door, chat, open_door


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [False, True])
async def test_the_engine_stops_within_a_second_of_a_close(
    door: Door, stream: bool, reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    door.say("tok ", forever=True, token_s=0.02)
    connection = await connect(door.port)
    await connection.post(
        "/v1/chat/completions", {**chat("Count upwards."), "stream": stream, "max_tokens": 1500}
    )
    if stream:
        await connection.read_until(b"\n\n", 3)
    await door.eventually(lambda: door.engine.running == 1)
    connection.close(reset=reset)
    await door.eventually(lambda: door.engine.running == 0)
    # A second of tokens: however slow the machine is.
    assert door.engine.new_tokens < 50
    await door.eventually(lambda: door.services.streams.running == 0)
    ends = [record for record in caplog.records if record.message == "request"]
    assert [vars(record)["status"] for record in ends] == [499]
    assert "Traceback" not in caplog.text


async def test_what_was_delivered_stays_in_the_cache_when_a_client_leaves(door: Door) -> None:
    door.say("tok ", forever=True, token_s=0.02)
    connection = await connect(door.port)
    await connection.post("/v1/chat/completions", {**chat(), "stream": True, "max_tokens": 1500})
    # The first event is the role, each later one a token.
    await connection.read_until(b"\n\n", 6)
    connection.close()
    await door.eventually(lambda: door.engine.cancelled)
    (kept,) = door.engine.cancelled.values()
    assert 5 <= kept <= door.engine.new_tokens


async def _queue_then_leave(door: Door, *, noticed: int) -> list[str]:
    """R1 runs; R2-R4 leave while queued, and R1 when so many have been noticed; R5 stays.

    The names of those that the engine started.
    """
    door.say("tok ", forever=True, token_s=0.02)
    names: dict[str, str] = {}
    staying = []
    for name, max_tokens in (("R1", 1500), ("R2", 50), ("R3", 50), ("R4", 50), ("R5", 2)):
        connection = await connect(door.port)
        body = {**chat(name), "stream": True, "max_tokens": max_tokens}
        await connection.post("/v1/chat/completions", body)
        await door.eventually(lambda: len(door.engine.generated) > len(names))
        names[door.engine.generated[-1].request_id] = name
        if name in ("R1", "R5"):
            staying.append(connection)
        else:
            connection.close()
    await door.eventually(lambda: len(door.engine.cancelled) >= noticed)
    first, last = staying
    first.close()
    await last.read_until(b"[DONE]")
    last.close()
    return [names[request_id] for request_id in door.engine.started]


async def test_requests_abandoned_in_the_queue_never_start() -> None:
    async with open_door(running_max=1) as door:
        assert await _queue_then_leave(door, noticed=3) == ["R1", "R5"]


async def test_without_handler_cancellation_abandoned_requests_would_start() -> None:
    async with open_door(running_max=1, handler_cancellation=False) as door:
        assert await _queue_then_leave(door, noticed=0) != ["R1", "R5"]


async def test_a_client_that_does_not_read_is_dropped_and_slows_nobody() -> None:
    server = ServerConfig(write_buffer_bytes_max=16 * 1024, write_timeout_s=0.5)
    async with open_door(server, context_tokens=200_000) as door:
        door.say(LONG, forever=True, token_s=0)
        slow = await connect(door.port, receive_bytes=4096)
        await slow.post("/v1/chat/completions", {**chat(), "stream": True, "max_tokens": 150_000})
        await door.eventually(lambda: door.engine.running == 1)
        door.say("ok")
        for _ in range(5):
            status, _ = await asyncio.wait_for(door.complete(), 60)
            assert status == 200
        await door.eventually(lambda: door.services.streams.running == 0)
        await door.eventually(lambda: door.engine.running == 0)
        slow.close()


async def test_a_client_that_does_not_read_does_not_delay_a_shutdown() -> None:
    server = ServerConfig(write_buffer_bytes_max=16 * 1024, write_timeout_s=60)
    async with open_door(server, context_tokens=200_000) as door:
        door.say(LONG, forever=True, token_s=0)
        deaf = await connect(door.port, receive_bytes=4096)
        await deaf.post("/v1/chat/completions", {**chat(), "stream": True, "max_tokens": 190_000})
        # The engine is told to stop once the queue between is full too.
        await door.eventually(lambda: door.engine.cancelled, within_s=30)
        await asyncio.sleep(0.5)
        assert door.services.streams.running == 1
        door.services.drain.cut()
        await door.eventually(lambda: door.services.streams.running == 0)
        deaf.close()


async def test_more_streams_than_allowed_are_refused_and_slots_come_back() -> None:
    async with open_door(ServerConfig(streams_max=2)) as door:
        door.say("tok ", forever=True, token_s=0.02)
        held = []
        for _ in range(2):
            connection = await connect(door.port)
            await connection.post(
                "/v1/chat/completions", {**chat(), "stream": True, "max_tokens": 1500}
            )
            await connection.read_until(b"\n\n")
            held.append(connection)
        status, told = await door.complete()
        assert (status, told["error"]["code"]) == (503, "overloaded")
        for connection in held:
            connection.close()
        await door.eventually(lambda: door.services.streams.running == 0)
        door.say("ok")
        assert (await door.complete())[0] == 200
