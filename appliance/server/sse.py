"""Server-sent events on one response: framing, pings, back-pressure. Knows no event's meaning.

A client that does not read is bounded twice: at most `server.write_buffer_bytes_max` bytes wait for it,
and after `server.write_timeout_s` without progress its connection is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from appliance.config import ServerConfig
from appliance.server.drain import Drain
from appliance.server.failures import ReaderTooSlow

PING = b": ping\n\n"
LAST_WORDS_S = 1.0
DONE = b"data: [DONE]\n\n"

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


def event_bytes(value: Any, *, event: str | None = None) -> bytes:
    """One event whose data is `value` as one line of JSON."""
    name = f"event: {event}\n".encode() if event is not None else b""
    # JSON escapes every line break, so the data can never end its own line.
    return name + b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream:
    """One response of content type text/event-stream.

    Headers go out with the first `send`, so whatever fails before is still an ordinary HTTP error.
    """

    def __init__(
        self, request: web.Request, config: ServerConfig, drain: Drain, request_id: str
    ) -> None:
        self._request = request
        self._config = config
        self._cut = drain.ending(started=True)
        self._response = web.StreamResponse(headers={**_HEADERS, "X-Request-Id": request_id})

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns."""
        return self._response

    @property
    def opened(self) -> bool:
        """Whether the status line has been sent."""
        return self._response.prepared

    async def send(self, data: bytes) -> None:
        """Write whole events; returns when they are within the buffer's bound.

        Raises ReaderTooSlow (the connection is then gone) or ConnectionError.
        """
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        async with self._bounded():
            if not self._response.prepared:
                transport.set_write_buffer_limits(high=self._config.write_buffer_bytes_max)
                await self._response.prepare(self._request)
            await self._response.write(data)
            await self._request.writer.drain()

    async def finish(self, *, keep_connection: bool) -> None:
        """End the response; after a failure the connection is closed too."""
        if not keep_connection:
            self._response.force_close()
        async with self._bounded():
            await self._response.write_eof()

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Give a write its time: `server.write_timeout_s`, or LAST_WORDS_S once streams are cut."""
        loop = asyncio.get_running_loop()
        allowed_s = LAST_WORDS_S if self._cut.done() else self._config.write_timeout_s
        try:
            async with asyncio.timeout(allowed_s) as limit:
                writing = True

                def hurry(_: asyncio.Future[None]) -> None:
                    # May already have been on its way when the write ended.
                    if writing:
                        limit.reschedule(loop.time() + LAST_WORDS_S)

                self._cut.add_done_callback(hurry)
                try:
                    yield
                finally:
                    writing = False
                    self._cut.remove_done_callback(hurry)
        except TimeoutError as error:
            transport = self._request.transport
            if transport is not None:
                transport.abort()
            raise ReaderTooSlow("the client does not read") from error
