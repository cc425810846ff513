"""Who acts in a drill beside the server: sessions that hold something, and a standby that reports back.

Each ends with its `close`. Never: decides what to hold; a situation tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Protocol

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.dbops.target import Connection
from appliance.errors import DatabaseError

CLOSE_TIMEOUT_S = 5.0
FEEDBACK_EVERY_S = 0.5
RETURN_AFTER_S = 0.2
PROTOCOL_VERSION = 3 << 16
DEAD_XMIN = 0
"""No feedback of that kind (InvalidTransactionId)."""


class Actor(Protocol):
    """Somebody in a drill."""

    async def close(self) -> None:
        """End, whatever state the server is in."""


class HeldSession:
    """A client that has said something and stays."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._query: asyncio.Task[str] | None = None

    @classmethod
    async def open(cls, url: str, application: str, *statements: str) -> HeldSession:
        """A session that has run these statements."""
        connection = await asyncpg.connect(
            url, server_settings={"application_name": application}, statement_cache_size=0
        )
        session = cls(connection)
        for statement in statements:
            await session.say(statement)
        return session

    @property
    def pid(self) -> int:
        """Its server process."""
        return self._connection.get_server_pid()

    @property
    def ended(self) -> bool:
        """Whether the server ended it."""
        return self._connection.is_closed()

    async def say(self, statement: str) -> None:
        """Run one statement to its end."""
        await self._connection.execute(statement)

    def begin_query(self, statement: str) -> None:
        """Run a statement that does not end by itself."""
        self._query = asyncio.create_task(self._connection.execute(statement))

    async def close(self) -> None:
        """End the session; its server may be gone."""
        self._connection.terminate()
        if self._query is not None:
            self._query.cancel()
            with contextlib.suppress(asyncio.CancelledError, *DatabaseFailure):
                await self._query


class Standby:
    """A client of the replication protocol that asks for WAL, throws it away and sends feedback.

    What a standby with `hot_standby_feedback = on` does to its primary, without a second cluster
    (PostgreSQL's manual, "Streaming Replication Protocol"). As one does, it comes back when its
    connection is ended; what helps for good is `stop_feedback`, a setting on its side.
    """

    def __init__(self, socket_path: Path, *, user: str, xmin: int, slot: str | None) -> None:
        self._socket_path = socket_path
        self._user = user
        self._xmin = xmin
        self._slot = slot
        self._streaming = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, and go on until `close`."""
        self._task = asyncio.create_task(self._stay())
        streaming = asyncio.create_task(self._streaming.wait())
        await asyncio.wait({self._task, streaming}, return_when=asyncio.FIRST_COMPLETED)
        streaming.cancel()
        if self._task.done():
            await self._task

    def stop_feedback(self) -> None:
        """As `hot_standby_feedback = off` and a reload on the standby: it holds back nothing more."""
        self._xmin = DEAD_XMIN

    async def close(self) -> None:
        """End the connection and come back no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _stay(self) -> None:
        while True:
            try:
                await self._stream()
            except (OSError, asyncio.IncompleteReadError, DatabaseError) as error:
                if not self._streaming.is_set():
                    raise DatabaseError(f"the drill's standby cannot connect: {error}") from error
            await asyncio.sleep(RETURN_AFTER_S)

    async def _stream(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._socket_path))
        try:
            wire = _Wire(reader, writer)
            await wire.start_up(self._user)
            position = (await wire.query("IDENTIFY_SYSTEM"))[2]
            slot = "" if self._slot is None else f'SLOT "{self._slot}" '
            await wire.begin_copy(f"START_REPLICATION {slot}PHYSICAL {position}")
            self._streaming.set()
            feedback = asyncio.create_task(self._send_feedback(writer))
            try:
                while True:
                    await wire.message()
            finally:
                feedback.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await feedback
        finally:
            writer.close()

    async def _send_feedback(self, writer: asyncio.StreamWriter) -> None:
        while True:
            # 'h': the time of sending, xmin and its epoch, catalog_xmin and its epoch.
            body = b"h" + struct.pack("!qIIII", 0, self._xmin, 0, DEAD_XMIN, 0)
            writer.write(_message(b"d", body))
            await writer.drain()
            await asyncio.sleep(FEEDBACK_EVERY_S)


class _Wire:
    """As much of the frontend protocol as a standby speaks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def start_up(self, user: str) -> None:
        options = {"user": user, "replication": "true", "application_name": "standby"}
        words = b"".join(f"{name}\0{value}\0".encode() for name, value in options.items()) + b"\0"
        self._writer.write(struct.pack("!ii", 8 + len(words), PROTOCOL_VERSION) + words)
        await self._until(b"Z")

    async def query(self, text: str) -> list[str]:
        """The columns of the answer's only row; an absent value is empty."""
        self._writer.write(_message(b"Q", text.encode() + b"\0"))
        return _columns((await self._until(b"Z"))[-1])

    async def begin_copy(self, text: str) -> None:
        self._writer.write(_message(b"Q", text.encode() + b"\0"))
        await self._until(b"W")

    async def message(self) -> tuple[bytes, bytes]:
        """The next message's kind and body. Raises DatabaseError when it is an error."""
        header = await self._reader.readexactly(5)
        body = await self._reader.readexactly(struct.unpack("!i", header[1:])[0] - 4)
        return header[:1], body

    async def _until(self, kind: bytes) -> list[bytes]:
        """The rows before the first message of this kind."""
        rows = []
        while True:
            got, body = await self.message()
            if got == b"E":
                raise DatabaseError(f"the standby was refused: {_error_text(body)}")
            if got == b"D":
                rows.append(body)
            if got == kind:
                return rows


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


def _columns(row: bytes) -> list[str]:
    values, offset = [], 2
    for _ in range(struct.unpack_from("!h", row)[0]):
        (length,) = struct.unpack_from("!i", row, offset)
        offset += 4
        values.append(row[offset : offset + max(length, 0)].decode())
        offset += max(length, 0)
    return values


def _error_text(body: bytes) -> str:
    fields = {field[:1]: field[1:] for field in body.split(b"\0") if field}
    return fields.get(b"M", b"no reason given").decode("utf-8", "replace")
