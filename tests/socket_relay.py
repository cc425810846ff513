"""A relay between a PostgreSQL client and its server that counts what passes, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

SOCKET = ".s.PGSQL.5432"
CHUNK_BYTES = 1 << 16
CLOSE_TIMEOUT_S = 5.0

READY = b"Z\0\0\0\x05I"
"""The end of what a server says to a client that logs in."""

_WORDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to unexpected postmaster exit\0\0"
FAREWELL = b"E" + (len(_WORDS) + 4).to_bytes(4, "big") + _WORDS


@dataclass(slots=True)
class Wire:
    """Bytes that passed since the last `reset`, and how the relay is reached.

    The next answer that holds `loses` does not arrive: the connection ends in its place, once.
    """

    url: str
    loses: bytes | None = None
    to_server: int = 0
    from_server: int = 0

    @property
    def total(self) -> int:
        return self.to_server + self.from_server

    def reset(self) -> None:
        self.to_server = self.from_server = 0


@asynccontextmanager
async def relayed(url: str, folder: Path, *, says_farewell: bool = False) -> AsyncIterator[Wire]:
    """A relay to the server of `url`, whose host is a folder, with its own socket in `folder`.

    With `says_farewell` each client that has logged in is told at once what a server says whose
    postmaster was killed, and the connection does not end yet.
    """
    parts = urlsplit(url)
    upstream = Path(parse_qs(parts.query)["host"][0]) / SOCKET
    wire = Wire(url=urlunsplit(parts._replace(query=f"host={folder}&port=5432")))

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if to_server:
                    wire.to_server += len(data)
                else:
                    wire.from_server += len(data)
                    if wire.loses is not None and wire.loses in data:
                        wire.loses = None
                        break
                    if says_farewell and data.endswith(READY):
                        data += FAREWELL
                writer.write(data)
                await writer.drain()
        writer.close()

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        back, forth = await asyncio.open_unix_connection(str(upstream))
        await asyncio.gather(
            pass_on(reader, forth, to_server=True), pass_on(back, writer, to_server=False)
        )

    server = await asyncio.start_unix_server(serve, str(folder / SOCKET))
    async with server:
        yield wire
    if serving:
        await asyncio.wait(serving, timeout=CLOSE_TIMEOUT_S)
