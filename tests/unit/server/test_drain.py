"""The end of the process: SIGTERM with streams, a queue and an idle connection open; a second one."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from appliance.config import ServerConfig, dump_config
from appliance.wire.frames import Generate
from tests.raw_http import RawConnection, RawResponse, connect, parse
from tests.script_model import write_script_model
from tests.scripted_engine import Script, ScriptedEngine
from tests.unit.server.door import NOWHERE, PIECES, chat, script_config, script_text

DRAIN_S = 4.0
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(slots=True, kw_only=True)
class Served:
    """A server process, and the scripted engine that this process plays."""

    process: asyncio.subprocess.Process
    port: int
    engine: ScriptedEngine
    log_path: Path

    async def stream(self, path: str, body: Any, **settings: Any) -> RawConnection:
        """A stream of which the first event has come."""
        connection = await connect(self.port, **settings)
        await connection.post(path, body)
        await connection.read_until(b"\n\n", 2)
        return connection

    def log(self) -> str:
        return self.log_path.read_text()

    async def has_logged(self, event: str) -> None:
        async with asyncio.timeout(60):
            while event not in await asyncio.to_thread(self.log):
                await asyncio.sleep(0.01)

    async def engine_has(self, requests: int) -> None:
        async with asyncio.timeout(60):
            while len(self.engine.generated) < requests:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    url: str, *, running_max: int = 64, everything: bool = True, drain_s: float = DRAIN_S
) -> AsyncIterator[Served]:
    """Start `appliance server` in a process of its own; ready, unless not `everything` is there."""
    with tempfile.TemporaryDirectory(prefix="served-") as name:
        directory = Path(name)
        write_script_model(directory / "model", PIECES)
        server = ServerConfig(port=0, drain_s=drain_s)
        config = script_config(directory, server, url)
        config_path, log_path = directory / "config.toml", directory / "server.log"
        config_path.write_text(dump_config(config))
        engine = ScriptedEngine(
            config.paths.engine_socket,
            vocab_size=script_text()[0].tokenizer.vocab_size,
            running_max=running_max,
        )
        if everything:
            await engine.start()
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "appliance.cli.main", "server", "--config", str(config_path)),
                stderr=log,
            )
        try:
            port = await _port(log_path)
            if everything:
                await _ready(port)
            yield Served(process=process, port=port, engine=engine, log_path=log_path)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if everything:
                await engine.stop()


async def _port(log_path: Path) -> int:
    async with asyncio.timeout(60):
        while "server_started" not in (text := await asyncio.to_thread(log_path.read_text)):
            await asyncio.sleep(0.05)
    return int(text.partition("port=")[2].split()[0])


async def _ready(port: int) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/ready") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)


def by_words(word_ids: dict[bytes, int]) -> Any:
    """Requests that say `short` end after a second, all others go on."""

    def choose(request: Generate) -> Script:
        token = word_ids[b"tok "]
        tokenizer = script_text()[0].tokenizer
        prompt = tokenizer.decode(request.token_ids)
        if "short" in prompt:
            return Script(token_ids=(token,) * 50, token_s=0.02)
        return Script(token_ids=(token,), forever=True, token_s=0.02)

    return choose


async def test_a_drain_lets_short_streams_end_and_cuts_the_others(database_url: str) -> None:
    async with serving(database_url, running_max=3) as served:
        served.engine.choose = by_words(script_text()[1])
        long = {"stream": True, "max_tokens": 1900}
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as session,
            session.post("/api/conversations", json={}) as created,
        ):
            conversation_id = (await created.json())["id"]
        path = f"/api/conversations/{conversation_id}/messages"
        cut = await served.stream(path, {"text": "long", "max_tokens": 1900})
        deaf = await served.stream(
            "/v1/chat/completions", {**chat("deaf"), **long}, receive_bytes=4096
        )
        idle = await connect(served.port)
        await idle.send(GET)
        await idle.read_until(b"}]}")
        # The last before the one that is to wait for a place: it ends by itself.
        short = await served.stream("/v1/chat/completions", {**chat("short"), **long})
        queued = await connect(served.port)
        await queued.post("/v1/chat/completions", {**chat("queued"), **long})
        await served.engine_has(4)

        begun = time.perf_counter()
        served.process.send_signal(signal.SIGTERM)
        assert parse(await queued.read_until(b"request_id")).status == 503
        await idle.send(GET)
        assert b" 503 " in await idle.read_until(b"request_id")
        with pytest.raises(ConnectionRefusedError):
            await connect(served.port)
        assert (await short.read_until(b"[DONE]")).count(b"tok ") > 10
        told = await cut.read_all()
        assert time.perf_counter() - begun > 0.7 * DRAIN_S
        assert b'event: error\ndata: {"error"' in told
        assert b"server_shutdown" in told
        assert await asyncio.wait_for(served.process.wait(), DRAIN_S + 60) == 0
        assert time.perf_counter() - begun < DRAIN_S + 30
        for connection in (short, cut, deaf, queued, idle):
            connection.close()
        _assert_quiet(served.log())
    rows = await _stored(database_url)
    (reply,) = [row for row in rows if row["role"] == "assistant"]
    assert reply["text"].startswith("tok tok tok")
    assert reply["finish_reason"] == "cancelled"


async def test_a_second_signal_ends_at_once_and_in_order(database_url: str) -> None:
    async with serving(database_url, drain_s=60) as served:
        served.engine.choose = by_words(script_text()[1])
        body = {**chat("long"), "stream": True, "max_tokens": 1900}
        cut = await served.stream("/v1/chat/completions", body)
        begun = time.perf_counter()
        served.process.send_signal(signal.SIGTERM)
        await served.has_logged("server_draining")
        served.process.send_signal(signal.SIGTERM)
        assert b"server_shutdown" in await cut.read_all()
        assert await asyncio.wait_for(served.process.wait(), 60) == 0
        assert time.perf_counter() - begun < 60
        cut.close()
        _assert_quiet(served.log())


async def test_the_server_explains_itself_while_database_and_engine_are_away() -> None:
    async with serving(NOWHERE, everything=False) as served:
        connection = await connect(served.port)

        async def get(path: str) -> RawResponse:
            await connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return parse(await connection.read_until(b"}"))

        assert (await get("/live")).status == 200
        ready = await get("/ready")
        assert ready.status == 503
        assert b"engine" in ready.body
        assert (await get("/api/conversations")).status == 503
        await connection.post("/v1/chat/completions", chat())
        answer = parse(await connection.read_until(b"}}"))
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        connection.close()
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), 60) == 0
        _assert_quiet(served.log())


def _assert_quiet(log: str) -> None:
    for word in ("Traceback", "traceback", "CancelledError", " error ", "unexpected"):
        assert word not in log, log


async def _stored(url: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch("SELECT role, text, finish_reason FROM appliance.messages")
    finally:
        await connection.close()
