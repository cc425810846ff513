"""A whole HTTP server in this process, in front of a scripted engine, and clients for it."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from appliance.chat.catalog import Catalog
from appliance.config import Config, DatabaseConfig, ModelSource, Paths, ServerConfig
from appliance.prompt.bundle_folder import load_characters
from appliance.prompt.chat_format.model_text import ModelText
from appliance.server.app import create_runner
from appliance.server.auth import Keys
from appliance.server.drain import Drain
from appliance.server.main import PROMPTS_DIR, build_services, engines_of
from appliance.server.services import Services
from appliance.server.storage import storing
from appliance.store.pool import connect
from appliance.store.prompt_registry import PromptRegistry
from tests.script_model import EOS, write_script_model
from tests.scripted_engine import Script, ScriptedEngine
from tests.sse_parser import SseEvent, SseParser

MODEL = "scripted"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
WORDS = (
    "tok |ok |ok| |one| two| three| four|a|b|c|ABC|DEF|G|HI|J|K|fine\n|Us|er|: next|x|y|aab|"
    "aabaaac|w | yes|!"
)
LONG = b"L" * 4000
"""A token that fills buffers quickly."""

PIECES = (
    LONG,
    *(word.encode() for word in WORDS.split("|")),
    *map(bytes.fromhex, ("f09f", "9880", "e4", "bda0", "f09f91a9e2808df09f", "91a7", "00")),
    EOS,
)


@dataclass(slots=True, kw_only=True)
class Streamed:
    """A streamed answer, read to its end by a strict parser."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    events: list[SseEvent] = field(default_factory=list)
    pings: int = 0
    ids: list[str] = field(default_factory=list)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The JSON of every event but `[DONE]`."""
        return [json.loads(event.data) for event in self.events if event.data != "[DONE]"]

    @property
    def text(self) -> str:
        """All of the reply's text, from either API."""
        parts = []
        for chunk in self.chunks:
            if "text" in chunk:
                parts.append(chunk["text"])
            for choice in chunk.get("choices", []):
                parts.append(choice["delta"].get("content", ""))
        return "".join(parts)


@dataclass(slots=True, kw_only=True)
class Door:
    """The running server, its engine, and a session that talks to it."""

    port: int
    engine: ScriptedEngine
    services: Services
    ids: dict[bytes, int]
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def say(self, *pieces: str | bytes, **settings: Any) -> None:
        """What the engine answers from now on."""
        raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.engine.script = Script(token_ids=tuple(self.ids[piece] for piece in raw), **settings)

    async def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """POST JSON (bytes are sent as they are); the status and the parsed answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(
            self.url + path, data=io.BytesIO(data), headers=sent
        ) as answer:
            return answer.status, await answer.json()

    async def complete(self, **fields: Any) -> tuple[int, Any]:
        """One chat completion; `messages` defaults to a short one."""
        return await self.post("/v1/chat/completions", {**chat(), **fields})

    async def stream(self, path: str, body: Any) -> Streamed:
        """POST and read a stream to its end."""
        parser = SseParser()
        async with self.session.post(self.url + path, json=body) as answer:
            raw = await answer.read()
            streamed = Streamed(status=answer.status, headers=answer.headers, body=raw)
            if answer.content_type == "text/event-stream":
                # Byte by byte, so that nothing depends on how the bytes were cut.
                for at in range(len(raw)):
                    streamed.events += parser.feed(raw[at : at + 1])
                parser.finish()
                streamed.pings, streamed.ids = parser.comments, parser.ids
            return streamed

    async def stream_chat(self, **fields: Any) -> Streamed:
        """One streamed chat completion."""
        return await self.stream("/v1/chat/completions", {**chat(), "stream": True, **fields})

    async def eventually(self, what: Any, *, within_s: float = 60.0) -> None:
        """Wait until `what()` holds."""
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(0.01)


def chat(content: Any = "x") -> dict[str, Any]:
    """The smallest body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


def script_config(directory: Path, server: ServerConfig, url: str) -> Config:
    """A configuration for the scripted model in `directory`."""
    return Config(
        model=ModelSource(path=directory / "model", name=MODEL),
        paths=Paths(data_dir=directory, run_dir=directory),
        server=server,
        database=DatabaseConfig(url=url, write_retry_s=5),
    )


@functools.cache
def script_text() -> tuple[ModelText, dict[bytes, int]]:
    """The made-up model, read once: finding out its chat format takes subprocesses."""
    with tempfile.TemporaryDirectory() as directory:
        ids = write_script_model(Path(directory), PIECES)
        return ModelText.load(Path(directory), now=datetime(2026, 1, 1, tzinfo=UTC)), ids


@asynccontextmanager
async def open_door(
    server: ServerConfig | None = None,
    *,
    url: str = NOWHERE,
    running_max: int = 64,
    context_tokens: int = 2048,
    handler_cancellation: bool = True,
) -> AsyncIterator[Door]:
    """Start engine and server; everything is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="door-"))
    text, ids = script_text()
    config = script_config(directory, server or ServerConfig(), url)
    engine = ScriptedEngine(
        config.paths.engine_socket,
        vocab_size=text.tokenizer.vocab_size,
        context_tokens=context_tokens,
        running_max=running_max,
    )
    await engine.start()
    async with (
        served(config, text, handler_cancellation=handler_cancellation) as (port, services),
        aiohttp.ClientSession() as session,
    ):
        yield Door(port=port, engine=engine, services=services, ids=ids, session=session)
    await engine.stop()
    shutil.rmtree(directory)


@asynccontextmanager
async def served(
    config: Config, text: ModelText, *, handler_cancellation: bool = True
) -> AsyncIterator[tuple[int, Services]]:
    """A server in front of the engine that listens at the configuration's socket: its port, its parts."""
    assert config.database.url is not None
    pool = await connect(config.database.url, config.database)
    async with storing(config, pool) as storage, engines_of(config) as engines:
        async with asyncio.timeout(30):
            while not all(engines.ready_by_name.values()):
                await asyncio.sleep(0.005)
        catalog = Catalog(PromptRegistry(pool), current=load_characters(PROMPTS_DIR))
        services = build_services(config, text, catalog, storage, engines, Drain())
        services.readiness.schema_ready = True
        runner = create_runner(services, Keys.from_config(config.server))
        runner._kwargs["handler_cancellation"] = handler_cancellation
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield runner.addresses[0][1], services
        finally:
            services.drain.cut()
            await runner.cleanup()
            await services.turns.close()
    async with asyncio.timeout(30):
        await pool.close()
