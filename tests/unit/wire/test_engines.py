"""Several engines as one: conversations stick, leave an engine that is lost, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from appliance import tokens
from appliance.errors import Conflict, EngineUnavailable
from appliance.wire.client import EngineClient
from appliance.wire.engines import Engines
from appliance.wire.frames import (
    Admitted,
    Cancel,
    Done,
    Finished,
    FrameSplitter,
    Generate,
    PurgeAll,
    Sampling,
    decode_from_engine,
    encode,
)
from tests.scripted_engine import Script, ScriptedEngine

CONVERSATIONS = [f"c{number}" for number in range(12)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[dict[str, ScriptedEngine]]:
    scripted = {
        name: ScriptedEngine(tmp_path / f"{name}.sock", vocab_size=300, running_max=1)
        for name in ("engine-0", "engine-1")
    }
    for engine in scripted.values():
        engine.script = Script(token_ids=(5, 6))
        await engine.start()
    yield scripted
    for engine in scripted.values():
        await engine.stop()


@pytest.fixture
async def engines(pair: dict[str, ScriptedEngine], tmp_path: Path) -> AsyncIterator[Engines]:
    clients = {name: EngineClient(tmp_path / f"{name}.sock") for name in pair}
    async with Engines(clients, public=b"public") as connected:
        await until(lambda: all(connected.ready_by_name.values()))
        yield connected


def request(conversation: str, request_id: str) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=tokens.pack(range(1, 9)),
        stretches=[(b"t", 8)],
        sampling=Sampling(),
        new_tokens_max=8,
        stop_token_ids=[2],
        conversation=conversation.encode(),
    )


async def send(engines: Engines, conversation: str, number: int) -> None:
    sent = request(conversation, f"{conversation}-{number}")
    events = [event async for event in engines.generate(sent)]
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"


def places(pair: dict[str, ScriptedEngine], number: int) -> dict[str, str]:
    """The engine of each conversation's request with this number."""
    return {
        sent.conversation.decode(): name
        for name, engine in pair.items()
        for sent in engine.generated
        if sent.request_id.endswith(f"-{number}")
    }


async def test_conversations_stick_leave_a_lost_engine_and_come_back(
    pair: dict[str, ScriptedEngine], engines: Engines
) -> None:
    for number in (1, 2):
        for conversation in CONVERSATIONS:
            await send(engines, conversation, number)
    home = places(pair, 1)
    assert set(home.values()) == {"engine-0", "engine-1"}
    assert places(pair, 2) == home
    await pair["engine-0"].stop()
    await until(lambda: engines.ready_by_name == {"engine-0": False, "engine-1": True})
    assert engines.ready
    for conversation in CONVERSATIONS:
        await send(engines, conversation, 3)
    assert set(places(pair, 3).values()) == {"engine-1"}
    assert (await engines.ask_each(timeout_s=30))["engine-0"] is None
    await pair["engine-0"].start()
    await until(lambda: all(engines.ready_by_name.values()))
    for conversation in CONVERSATIONS:
        await send(engines, conversation, 4)
    assert places(pair, 4) == home
    for name in pair:
        await pair[name].stop()
    await until(lambda: not engines.ready)
    with pytest.raises(EngineUnavailable):
        await send(engines, "c1", 5)
    for engine in pair.values():
        await engine.start()


async def test_a_question_to_all_reaches_those_that_are_there_and_names_those_that_are_not(
    pair: dict[str, ScriptedEngine], engines: Engines
) -> None:
    answers = await engines.question_each(PurgeAll(), timeout_s=30)
    assert [answer.pages for answer in answers if isinstance(answer, Done)] == [1, 1]
    await pair["engine-0"].stop()
    await until(lambda: not engines.ready_by_name["engine-0"])
    with pytest.raises(EngineUnavailable, match=r"No answer from engine-0 \(of 2 engines\)"):
        await engines.question_each(PurgeAll(), timeout_s=30)
    assert [engine.purges for engine in pair.values()] == [1, 2]
    await pair["engine-0"].start()


async def test_a_request_passes_a_full_queue_by_and_waiting_ones_are_counted_until_admitted(
    pair: dict[str, ScriptedEngine], engines: Engines
) -> None:
    for engine in pair.values():
        engine.script = Script(token_ids=(5,), forever=True, token_s=60)
    running = [engines.generate(request("c1", f"r{number}")) for number in range(65)]
    assert isinstance(await anext(running[0]), Admitted)
    reading = [asyncio.create_task(anext(stream)) for stream in running[1:]]
    home = next(name for name, engine in pair.items() if engine.generated)
    # One runs, 64 wait: the queue is full.
    await until(lambda: len(pair[home].generated) == 65)
    async with aclosing(engines.generate(request("c1", "over"))) as stream:
        assert isinstance(await anext(stream), Admitted)
        other = next(name for name in pair if name != home)
        assert [sent.request_id for sent in pair[other].generated] == ["over"]
        with pytest.raises(Conflict):
            await anext(engines.generate(request("c2", "over")))
        engines.cancel("over", 0)
        await until(lambda: pair[other].cancelled == {"over": 0})
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for stream in running:
        await stream.aclose()
    await until(lambda: pair[home].running == 0)
    for engine in pair.values():
        engine.script = Script(token_ids=(5,))
    await send(engines, "c1", 9)
    assert places(pair, 9) == {"c1": home}


async def test_a_request_that_is_cancelled_before_it_begins_gets_its_end(tmp_path: Path) -> None:
    """Of the scripted engine: both frames in one write, as from a user who leaves at once."""
    engine = ScriptedEngine(tmp_path / "engine.sock", vocab_size=300)
    await engine.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "engine.sock")
    asked = Generate(
        request_id="r",
        token_ids=tokens.pack([1, 2]),
        stretches=[(b"n", 2)],
        sampling=Sampling(seed=3),
        new_tokens_max=8,
        stop_token_ids=[],
        closing=b"",
    )
    writer.write(encode(asked) + encode(Cancel(request_id="r", keep_tokens=0)))
    splitter, ended = FrameSplitter(), False
    async with asyncio.timeout(10):
        while not ended:
            for body in splitter.feed(await reader.read(65536)):
                ended |= isinstance(decode_from_engine(body), Finished)
    assert engine.running == engine.waiting == 0
    writer.close()
    await engine.stop()
