"""Everything the handlers of one application share, under one typed key. Owns no behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from appliance._core import Tokenizer
from appliance.chat.completion import Completions
from appliance.chat.turn import Turns
from appliance.config import Config
from appliance.errors import Overloaded
from appliance.prompt.characters import Characters
from appliance.server.drain import Drain
from appliance.server.metrics import Metrics
from appliance.server.readiness import Readiness
from appliance.store.ledger import Ledger
from appliance.wire.client import EngineClient


class Streams:
    """How many replies are being written now."""

    def __init__(self) -> None:
        self.running = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self, limit: int) -> Iterator[None]:
        """Hold one slot; raises Overloaded when `limit` are held."""
        if self.running >= limit:
            raise Overloaded("Too many replies are being written; try again in a moment.")
        self.running += 1
        self._none.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._none.set()

    async def wait_none(self) -> None:
        """Return when no reply is being written."""
        await self._none.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts below the HTTP door, and the door's own shared state."""

    config: Config
    turns: Turns
    completions: Completions
    ledger: Ledger
    engine: EngineClient
    characters: Characters
    tokenizer: Tokenizer
    metrics: Metrics
    drain: Drain
    readiness: Readiness
    streams: Streams = field(default_factory=Streams)


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
