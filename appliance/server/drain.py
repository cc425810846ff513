"""The end of the process as its requests see it: when draining began, and when streams are cut.

Owns the two moments, and nothing that reacts to them.
"""

from __future__ import annotations

import asyncio

from appliance.errors import ShuttingDown


class Drain:
    """Created on the running loop. `begun`: no new work. `cut`: what still runs ends now."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = loop.create_future()
        self._cut: asyncio.Future[None] = loop.create_future()

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return self._begun.done()

    def begin(self) -> None:
        """Refuse new work from now on. Idempotent."""
        if not self._begun.done():
            self._begun.set_result(None)

    def cut(self) -> None:
        """End what still runs. Idempotent; implies `begin`."""
        self.begin()
        if not self._cut.done():
            self._cut.set_result(None)

    def refuse(self) -> None:
        """Raise ShuttingDown when draining."""
        if self.draining:
            raise ShuttingDown("The server is shutting down; send the request again.")

    def ending(self, *, started: bool) -> asyncio.Future[None]:
        """What ends a request: draining, or for one whose answer has started, the cut."""
        return self._cut if started else self._begun
