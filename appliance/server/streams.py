"""Counts the replies that are being written, and refuses more than a limit. Never: writes one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from appliance.errors import Overloaded


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
