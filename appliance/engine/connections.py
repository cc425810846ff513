"""The engine's unix socket: bytes in and out, in a thread of its own. Never: looks into a request.

The step loop never waits for a server: what it sends is handed to the thread, and a server that lets
more than `OUTBOX_BYTES_MAX` pile up is cut off, which cancels its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from appliance.errors import ConfigError
from appliance.unix_socket import bind_unix_socket
from appliance.wire.frames import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    Hello,
    ServerFrame,
    decode_from_server,
    encode,
)

log = logging.getLogger("appliance.engine")

OUTBOX_BYTES_MAX = 8 * 1024 * 1024
INBOX_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Unread bytes of one connection before reading from it pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A frame from a server; `size` in bytes."""

    connection: int
    frame: ServerFrame
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """A connection is gone; nothing can be sent to it any more."""

    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The process is to drain and end."""


Arrival = Received | Disconnected | StopAsked


class Connections:
    """The listening socket and all connections. Opened once, closed once."""

    def __init__(self, path: Path, hello: Hello) -> None:
        self._path = path
        self._hello = encode(hello)
        # SimpleQueue.put is reentrant, so a signal handler may call `ask_stop`.
        self._inbox: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._links: dict[int, _Link] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="connections", daemon=True
        )
        self._server: asyncio.Server | None = None
        self._inode: int | None = None

    def open(self) -> None:
        """Listen; from now on connections get `Hello`. Raises ConfigError when the path is taken."""
        try:
            listening = bind_unix_socket(self._path)
        except ConfigError:
            self._loop.close()
            raise
        self._inode = self._path.stat().st_ino
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(listening), self._loop).result()

    def receive(self, timeout_s: float | None) -> list[Arrival]:
        """All that has arrived; waits for the first up to `timeout_s` (None: forever)."""
        arrivals: list[Arrival] = []
        with contextlib.suppress(queue.Empty):
            arrivals.append(self._inbox.get(timeout=timeout_s))
            while True:
                arrivals.append(self._inbox.get_nowait())
        sizes: dict[int, int] = {}
        for arrival in arrivals:
            if isinstance(arrival, Received):
                sizes[arrival.connection] = sizes.get(arrival.connection, 0) + arrival.size
        if sizes:
            self._loop.call_soon_threadsafe(self._consumed, sizes)
        return arrivals

    def send(self, outbox: dict[int, bytearray]) -> None:
        """Hand over encoded frames by connection; those for connections that are gone are dropped."""
        if outbox:
            self._loop.call_soon_threadsafe(self._write, outbox)

    def ask_stop(self) -> None:
        """Make `receive` return `StopAsked`; callable from any thread and from a signal handler."""
        self._inbox.put(StopAsked())

    def stop_listening(self) -> None:
        """Take no new connections; those that exist go on."""
        self._loop.call_soon_threadsafe(self._stop_listening)

    def close(self, flush_s: float) -> None:
        """Send what is still to be sent, for at most `flush_s`, close everything, end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(flush_s), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        with contextlib.suppress(FileNotFoundError):
            # Another engine may have bound the path since; its socket is not ours to remove.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    # Everything below runs in the thread.

    async def _listen(self, listening: socket.socket) -> None:
        self._server = await self._loop.create_unix_server(self._accept, sock=listening)

    def _accept(self) -> _Link:
        return _Link(next(self._numbers), self._hello, self._inbox, self._links)

    def _consumed(self, sizes: dict[int, int]) -> None:
        for connection, size in sizes.items():
            if (link := self._links.get(connection)) is not None:
                link.consumed(size)

    def _write(self, outbox: dict[int, bytearray]) -> None:
        for connection, data in outbox.items():
            if (link := self._links.get(connection)) is not None:
                link.write(data)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _close(self, flush_s: float) -> None:
        self._stop_listening()
        links = list(self._links.values())
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.lost for link in links], timeout=flush_s)
        for link in links:
            link.abort()
            await link.lost


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        number: int,
        hello: bytes,
        inbox: queue.SimpleQueue[Arrival],
        links: dict[int, _Link],
    ) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number = number
        self._hello = hello
        self._inbox = inbox
        self._links = links
        self._splitter = FrameSplitter()
        self._unread_bytes = 0
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._links[self._number] = self
        self._transport.write(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        del self._links[self._number]
        self._inbox.put(Disconnected(connection=self._number))
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._splitter.feed(data):
                frame = decode_from_server(body)
                self._unread_bytes += len(body)
                self._inbox.put(Received(connection=self._number, frame=frame, size=len(body)))
        except (ValueError, msgspec.MsgspecError) as error:
            # The type alone: the error's text may quote the frame.
            self._cut_off(f"bad frame: {type(error).__name__}")
            return
        if self._unread_bytes > INBOX_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def consumed(self, size: int) -> None:
        self._unread_bytes -= size
        if self._is_paused and self._unread_bytes <= INBOX_BYTES_MAX:
            self._is_paused = False
            self._transport.resume_reading()

    def write(self, data: bytearray) -> None:
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > OUTBOX_BYTES_MAX:
            self._cut_off("does not read")

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """Close without sending the rest."""
        if not self.lost.done():
            self._transport.abort()

    def _cut_off(self, reason: str) -> None:
        log.warning("connection_cut", extra={"connection": self._number, "reason": reason})
        self._transport.abort()
