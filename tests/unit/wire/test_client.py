"""The client against real engines: in a thread of this process, and in one that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from appliance import tokens
from appliance.errors import Conflict, EngineUnavailable
from appliance.model.decoder import Decoder
from appliance.wire import client as client_module
from appliance.wire.client import EngineClient
from appliance.wire.frames import (
    PROTOCOL,
    Admitted,
    Ask,
    Audited,
    AuditPath,
    AuditSample,
    Cancel,
    Done,
    Finished,
    FrameSplitter,
    Generate,
    Hello,
    PurgeNamespace,
    Sampling,
    Stats,
    Tokens,
    Unpin,
    decode_from_server,
    encode,
)
from appliance.wire.pending import Event
from tests.engine_fixtures import engine_config, engine_in_thread, start_engine

PATIENCE_S = 20.0
HELLO = Hello(
    protocol=PROTOCOL,
    pid=1,
    model_fingerprint="f",
    vocab_size=300,
    context_tokens_max=256,
    page_size=16,
    pages_total=16,
    waiting_max=1,
    device="cpu",
)


def request(request_id: str, *, new_tokens_max: int = 8, prompt: int = 10) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=tokens.pack(range(1, prompt + 1)),
        stretches=[(b"n", prompt)],
        sampling=Sampling(seed=3),
        new_tokens_max=new_tokens_max,
        stop_token_ids=[],
        closing=tokens.pack([2, 3]),
    )


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@pytest.fixture
def engine(decoder: Decoder, socket_path: Path) -> Iterator[None]:
    with engine_in_thread(decoder, socket_path):
        yield


@pytest.fixture
async def client(engine: None, socket_path: Path) -> AsyncIterator[EngineClient]:
    async with EngineClient(socket_path, jitter=random.Random(1)) as connecting:
        await asyncio.wait_for(connecting.wait_ready(), PATIENCE_S)
        yield connecting
    ours = {asyncio.current_task()}
    assert asyncio.all_tasks() <= ours, "the client left a task behind"


async def collect(client: EngineClient, generate: Generate) -> list[Event]:
    return [event async for event in client.generate(generate)]


async def read_tokens(stream: AsyncIterator[Event]) -> None:
    async for event in stream:
        assert isinstance(event, Tokens)


async def stats(client: EngineClient) -> Stats:
    answer = await client.ask(check=True)
    assert answer.check_failure is None
    return answer


async def idle_stats(client: EngineClient) -> Stats:
    """Statistics once nothing runs, waits or closes."""
    for _ in range(1000):
        answer = await stats(client)
        if all(answer.values[name] == 0 for name in ("running", "waiting", "closing")):
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(f"still busy: {answer.values}")


async def test_a_request_yields_its_events_and_ends(client: EngineClient) -> None:
    events = await collect(client, request("a"))
    assert [type(event) for event in events] == [Admitted, *[Tokens] * 8, Finished]
    assert client.hello is not None
    assert client.hello.vocab_size == 266
    answer = await idle_stats(client)
    assert answer.values["new_tokens"] == 8
    assert answer.values["cancelled"] == 0
    assert answer.values["pages_leased"] == 0
    assert answer.values["rss_bytes"] > 1e6


async def test_a_question_gets_its_own_answer_beside_requests_and_other_questions(
    client: EngineClient,
) -> None:
    asked = request("a", prompt=40)
    path = asked.token_ids
    running = asyncio.create_task(collect(client, asked))
    sampled, purged, _ = await asyncio.gather(
        client.question(AuditSample(tokens=100, wait_ms=60_000), timeout_s=PATIENCE_S),
        client.question(PurgeNamespace(namespace=b"nobody"), timeout_s=PATIENCE_S),
        client.ask(),
    )
    await running
    assert isinstance(sampled, Audited)
    assert isinstance(purged, Done)
    assert purged.pages == 0
    await idle_stats(client)
    audited = await client.question(
        AuditPath(token_ids=path, stretches=[(b"n", 40)], wait_ms=60_000), timeout_s=PATIENCE_S
    )
    assert isinstance(audited, Audited)
    assert [(found.tokens, found.cause) for found in audited.paths] == [(40, None)]
    refused = await client.question(Unpin(conversation=b"c"), timeout_s=PATIENCE_S)
    assert refused == Done(request_id=refused.request_id, pages=0)
    assert (await idle_stats(client)).values["audits"] >= 1


async def test_a_question_nobody_answers_in_time_says_so(client: EngineClient) -> None:
    running = asyncio.create_task(collect(client, request("a", new_tokens_max=200)))
    await asyncio.sleep(0.05)
    with pytest.raises(EngineUnavailable, match="in time"):
        # Audits are for idle time, and there is none.
        await client.question(AuditSample(tokens=5, wait_ms=30), timeout_s=0.03)
    await running


async def test_many_requests_at_once_each_get_their_own_events(client: EngineClient) -> None:
    lengths = {f"r{i}": 1 + i % 7 for i in range(40)}
    replies = await asyncio.gather(
        *(collect(client, request(r, new_tokens_max=n)) for r, n in lengths.items())
    )
    for (request_id, length), events in zip(lengths.items(), replies, strict=True):
        assert all(event.request_id == request_id for event in events)
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert finished.new_tokens == length
        assert sum(isinstance(event, Finished) for event in events) == 1


async def test_closing_early_cancels_once_and_keeps_what_was_yielded(
    client: EngineClient,
) -> None:
    async with aclosing(client.generate(request("a", new_tokens_max=200))) as events:
        seen = [await anext(events) for _ in range(6)]
    assert (await idle_stats(client)).values["cancelled"] == 1
    reply = b"".join(event.token_ids for event in seen if isinstance(event, Tokens))
    assert tokens.count(reply) == 5
    longer = request("b", prompt=10)
    kept = Generate(
        request_id="b",
        token_ids=longer.token_ids + reply + tokens.pack([9]),
        stretches=[(b"n", 16)],
        sampling=longer.sampling,
        new_tokens_max=1,
        stop_token_ids=[],
    )
    admitted = (await collect(client, kept))[0]
    assert isinstance(admitted, Admitted)
    assert admitted.prefix_hit_tokens >= 14


async def test_cancelling_the_readers_task_cancels_the_request(client: EngineClient) -> None:
    reader = asyncio.create_task(collect(client, request("a", new_tokens_max=240)))
    while (await stats(client)).values["running"] == 0:
        await asyncio.sleep(0.005)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    answer = await idle_stats(client)
    assert answer.values["cancelled"] == 1
    assert answer.values["finished"] == 0


async def test_a_cancel_said_before_the_close_counts_and_is_sent_once(
    client: EngineClient,
) -> None:
    async with aclosing(client.generate(request("a", new_tokens_max=200))) as events:
        for _ in range(4):
            await anext(events)
        client.cancel("a", 2)
        client.cancel("a", 99)
        client.cancel("nobody", 1)
        rest = [event async for event in events]
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason == "cancelled"
    client.cancel("a", 0)
    assert (await idle_stats(client)).values["cancelled"] == 1


async def test_an_id_in_use_is_a_conflict_until_the_engine_has_ended_it(
    client: EngineClient,
) -> None:
    async with aclosing(client.generate(request("a", new_tokens_max=200))) as events:
        await anext(events)
        with pytest.raises(Conflict):
            await collect(client, request("a"))
    with pytest.raises(Conflict):
        await collect(client, request("a"))
    await idle_stats(client)
    events_of_second = await collect(client, request("a"))
    finished = events_of_second[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "length"


async def test_a_reader_that_does_not_read_is_cancelled_and_sees_no_gap(
    engine: None, socket_path: Path
) -> None:
    async with EngineClient(socket_path, events_max=10) as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        async with aclosing(client.generate(request("a", new_tokens_max=240))) as events:
            await anext(events)
            answer = await idle_stats(client)
            assert answer.values["cancelled"] == 1
            assert answer.values["new_tokens"] < 240
            rest = [event async for event in events]
        finished = rest.pop()
        assert isinstance(finished, Finished)
        assert finished.reason == "cancelled"
        assert len(rest) <= 10
        assert finished.new_tokens == len(rest)


async def test_without_an_engine_everything_is_unavailable_at_once(socket_path: Path) -> None:
    async with EngineClient(socket_path) as client:
        assert not client.ready
        assert client.hello is None
        with pytest.raises(EngineUnavailable):
            await collect(client, request("a"))
        with pytest.raises(EngineUnavailable):
            await client.ask()
        client.cancel("a", 0)


async def test_an_engine_that_stops_is_found_again_when_it_is_back(
    decoder: Decoder, socket_path: Path
) -> None:
    async with EngineClient(socket_path, jitter=random.Random(1)) as client:
        for _ in range(2):
            with engine_in_thread(decoder, socket_path):
                await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
                assert isinstance((await collect(client, request("a")))[-1], Finished)
            await wait_until_lost(client)


async def wait_until_lost(client: EngineClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while client.ready:
            await asyncio.sleep(0.01)


async def test_a_silent_socket_is_not_ready(socket_path: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(say_nothing, socket_path)
    async with server, EngineClient(socket_path) as client:
        await asyncio.sleep(0.3)
        assert not client.ready


@pytest.mark.parametrize("greeting", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1"])
async def test_a_peer_that_speaks_nonsense_is_left_and_tried_again(
    socket_path: Path, greeting: bytes
) -> None:
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(ConnectionError):
            writer.write(greeting)
            await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(speak, socket_path)
    async with server, EngineClient(socket_path, jitter=random.Random(1)) as client:
        async with asyncio.timeout(PATIENCE_S):
            while connections < 3:
                await asyncio.sleep(0.01)
        assert not client.ready


async def test_a_killed_engine_ends_all_streams_and_its_successor_serves(
    model_directory: Path, tmp_path: Path
) -> None:
    config = engine_config(model_directory, tmp_path)
    first = start_engine(config)
    second = None
    try:
        async with EngineClient(config.paths.engine_socket) as client:
            await asyncio.wait_for(client.wait_ready(), 300)
            streams = [client.generate(request(f"r{i}", new_tokens_max=240)) for i in range(8)]
            for stream in streams:
                assert isinstance(await anext(stream), Admitted)
            question = asyncio.create_task(client.ask())
            await asyncio.sleep(0)
            first.kill()
            for stream in streams:
                with pytest.raises(EngineUnavailable):
                    await read_tokens(stream)
            with contextlib.suppress(EngineUnavailable):
                await question
            await wait_until_lost(client)
            second = start_engine(config)
            await asyncio.wait_for(client.wait_ready(), 300)
            events = await collect(client, request("r0"))
            assert isinstance(events[-1], Finished)
            assert events[-1].reason == "length"
            assert (await idle_stats(client)).values["pages_leased"] == 0
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.communicate()


class RecordingEngine:
    """A peer that streams forever and writes down which cancels it is sent."""

    def __init__(self) -> None:
        self.cancels: list[tuple[str, int]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        splitter = FrameSplitter()
        while data := await reader.read(65536):
            for body in splitter.feed(data):
                frame = decode_from_server(body)
                if isinstance(frame, Generate):
                    for token_id in range(20):
                        token_ids = tokens.pack([token_id])
                        writer.write(
                            encode(Tokens(request_id=frame.request_id, token_ids=token_ids))
                        )
                elif isinstance(frame, Cancel):
                    self.cancels.append((frame.request_id, frame.keep_tokens))
                elif isinstance(frame, Ask):
                    writer.write(encode(Stats(request_id=frame.request_id, values={})))
        writer.close()


async def test_one_cancel_is_on_the_wire_whatever_ends_a_request(socket_path: Path) -> None:
    peer = RecordingEngine()
    server = await asyncio.start_unix_server(peer.serve, socket_path)
    async with server, EngineClient(socket_path) as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        async with aclosing(client.generate(request("closed"))) as events:
            for _ in range(5):
                await anext(events)
        async with aclosing(client.generate(request("told"))) as events:
            for _ in range(5):
                await anext(events)
            client.cancel("told", 3)
            client.cancel("told", 4)
        read = 0

        async def read_on() -> None:
            nonlocal read
            async with aclosing(client.generate(request("task"))) as events:
                async for _ in events:
                    read += 1

        reader = asyncio.create_task(read_on())
        async with asyncio.timeout(PATIENCE_S):
            while read < 20:
                await asyncio.sleep(0.001)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await client.ask()
        assert peer.cancels == [("closed", 5), ("told", 3), ("task", 20)]


async def test_a_question_that_is_not_answered_in_time_is_unavailable(socket_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_unix_server(greet, socket_path)
    async with server, EngineClient(socket_path) as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        with pytest.raises(EngineUnavailable, match="in time"):
            await client.ask(timeout_s=0.05)


async def test_an_engine_that_lives_and_does_nothing_is_given_up(socket_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_unix_server(greet, socket_path)
    async with server, EngineClient(socket_path, frozen_after_s=0.1) as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EngineUnavailable, match="lost"):
                await collect(client, request("a"))


async def test_an_engine_of_another_protocol_is_not_used(socket_path: Path) -> None:
    greetings = 0

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greetings
        greetings += 1
        writer.write(encode(msgspec.structs.replace(HELLO, protocol=PROTOCOL + 1)))
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_unix_server(greet, socket_path)
    async with server, EngineClient(socket_path, jitter=random.Random(1)) as client:
        async with asyncio.timeout(PATIENCE_S):
            while greetings < 2:
                await asyncio.sleep(0.01)
        assert not client.ready


async def test_a_close_at_the_moment_of_the_greeting_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing: list[asyncio.Task[None]] = []
    made = client_module._Link.connection_made

    def connection_made(link: client_module._Link, transport: asyncio.BaseTransport) -> None:
        made(link, transport)
        link.greeted.add_done_callback(lambda _: closing.append(asyncio.create_task(mine.close())))

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(HELLO))
        await reader.read()
        writer.close()

    monkeypatch.setattr(client_module._Link, "connection_made", connection_made)
    async with await asyncio.start_unix_server(greet, str(tmp_path / "engine.sock")):
        mine = EngineClient(tmp_path / "engine.sock")
        mine.start()
        async with asyncio.timeout(PATIENCE_S):
            while not closing:
                await asyncio.sleep(0.01)
            await closing[0]
    assert not mine.ready
