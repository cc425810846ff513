"""A client that reads its answer so slowly that buffers fill, or as fast as it comes. Never: measures."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

BUFFER_BYTES = 4_096
QUICK_BYTES = 65_536
ACCEPTED = b"HTTP/1.1 200"


class Reader:
    """Reads one long answer after the other, in a thread, until it is stopped.

    `bytes_per_s` None: as fast as it comes. `connections`: how many it needed, `received`: bytes,
    `refusal`: the first line of an answer that was none; it ends the reading.
    """

    def __init__(self, url: str, body: Mapping[str, Any], bytes_per_s: int | None) -> None:
        address = urlsplit(url)
        self._address = (address.hostname or "127.0.0.1", address.port or 80)
        content = json.dumps(body).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (address.netloc.encode(), len(content))
        ) + content
        self._bytes_per_s = bytes_per_s
        self._over = threading.Event()
        self.connections = 0
        self.received = 0
        self.refusal: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set() and self.refusal is None:
            with socket.socket() as connection:
                if self._bytes_per_s is not None:
                    # Before connecting: the window that the server may fill is told then.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
                connection.settimeout(1.0)
                connection.connect(self._address)
                connection.sendall(self._request)
                self.connections += 1
                self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        begin = b""
        while not self._over.is_set():
            try:
                data = connection.recv(self._bytes_per_s or QUICK_BYTES)
            except TimeoutError:
                continue
            except ConnectionError:
                # The server has had enough of it.
                return
            if not data:
                return
            self.received += len(data)
            if len(begin) < len(ACCEPTED):
                begin += data
                if not ACCEPTED.startswith(begin[: len(ACCEPTED)]):
                    self.refusal = begin.split(b"\r\n")[0].decode("latin-1")
                    return
            if self._bytes_per_s is not None:
                self._over.wait(1.0)
