"""HTTP by hand over a raw socket: bytes as they are, closes of both kinds, whole responses."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    """One response; `rest` is what followed it on the connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    rest: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class RawConnection:
    """One TCP connection. `receive_bytes` bounds what the kernel takes for a client that reads not."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self._port = port
        self._receive_bytes = receive_bytes
        self.socket = socket.socket()

    async def open(self) -> None:
        """Connect."""
        if self._receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
        self.socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self.socket, ("127.0.0.1", self._port))

    async def send(self, data: bytes) -> None:
        """Send all of it; the other side may close meanwhile."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def post(self, path: str, body: Any) -> None:
        """Send one JSON request."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        await self.send(head.encode() + data)

    async def receive(self, *, timeout_s: float = PATIENCE_S) -> bytes:
        """Some bytes, b'' at the end."""
        receiving = asyncio.get_running_loop().sock_recv(self.socket, 65536)
        return await asyncio.wait_for(receiving, timeout_s)

    async def read_until(self, mark: bytes, times: int = 1) -> bytes:
        """Read until a mark was seen that often."""
        data = b""
        while data.count(mark) < times:
            more = await self.receive()
            assert more, f"closed before {mark!r}: {data!r}"
            data += more
        return data

    async def read_all(self, *, timeout_s: float = PATIENCE_S) -> bytes:
        """Everything until the other side closes."""
        data = b""
        async with asyncio.timeout(timeout_s):
            try:
                while more := await self.receive(timeout_s=timeout_s):
                    data += more
            except ConnectionResetError:
                return data
        return data

    def close(self, *, reset: bool = False) -> None:
        """Close with FIN, or with RST."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


async def connect(port: int, *, receive_bytes: int | None = None) -> RawConnection:
    """An open connection."""
    connection = RawConnection(port, receive_bytes=receive_bytes)
    try:
        await connection.open()
    except OSError:
        connection.close()
        raise
    return connection


async def exchange(port: int, raw: bytes, *, timeout_s: float = PATIENCE_S) -> RawResponse:
    """Send bytes, read until the server closes, parse the first response."""
    connection = await connect(port)
    try:
        await connection.send(raw)
        return parse(await connection.read_all(timeout_s=timeout_s))
    finally:
        connection.close()


def parse(data: bytes) -> RawResponse:
    """The first response of these bytes, which must have a Content-Length."""
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = int(headers.get("content-length", "0"))
    return RawResponse(
        status=int(first.split(" ")[1]), headers=headers, body=rest[:length], rest=rest[length:]
    )
