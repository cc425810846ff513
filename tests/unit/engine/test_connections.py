"""The engine's socket: file mode, stale files, bad bytes, readers that do not read."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.engine.connections import (
    OUTBOX_BYTES_MAX,
    Arrival,
    Connections,
    Disconnected,
    Received,
    StopAsked,
)
from appliance.errors import ConfigError
from appliance.unix_socket import bind_unix_socket
from appliance.wire.frames import (
    PROTOCOL,
    Ask,
    FrameSplitter,
    Hello,
    Stats,
    decode_from_engine,
    encode,
)

HELLO = Hello(
    protocol=PROTOCOL,
    pid=1,
    model_fingerprint="f",
    vocab_size=10,
    context_tokens_max=10,
    page_size=16,
    pages_total=1,
    waiting_max=1,
    device="cpu",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@pytest.fixture
def connections(path: Path) -> Iterator[Connections]:
    opened = Connections(path, HELLO)
    opened.open()
    yield opened
    opened.close(1.0)


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(path))
        yield client


def receive_one(connections: Connections) -> Arrival:
    (arrival,) = connections.receive(10)
    return arrival


def test_the_socket_is_for_its_owner_only_and_removed_at_the_end(path: Path) -> None:
    before = os.umask(0)
    try:
        opened = Connections(path, HELLO)
        opened.open()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    opened.close(1.0)
    assert not path.exists()


def test_a_socket_left_by_a_dead_engine_is_replaced(path: Path) -> None:
    bind_unix_socket(path).close()
    assert path.exists()
    opened = Connections(path, HELLO)
    opened.open()
    with connected(path) as client:
        assert client.recv(4)
    opened.close(1.0)


def test_a_socket_that_someone_serves_is_left_alone(path: Path, connections: Connections) -> None:
    with pytest.raises(ConfigError, match="another process"):
        Connections(path, HELLO).open()
    with connected(path) as client:
        assert client.recv(4)


def test_a_file_of_another_kind_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        Connections(path, HELLO).open()
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_is_told_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(ConfigError, match=r"107 bytes.*run_dir"):
        Connections(path, HELLO).open()


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        Connections(tmp_path / "no" / "engine.sock", HELLO).open()


def test_a_successors_socket_is_not_removed(path: Path) -> None:
    opened = Connections(path, HELLO)
    opened.open()
    path.unlink()
    successor = bind_unix_socket(path)
    opened.close(1.0)
    assert path.exists()
    successor.close()


def test_frames_arrive_with_their_connection_and_its_end(
    path: Path, connections: Connections
) -> None:
    with connected(path) as client:
        hello = client.recv(65536)
        assert decode_from_engine(FrameSplitter().feed(hello)[0]) == HELLO
        ask = Ask(request_id="a", check=True)
        client.sendall(encode(ask))
        received = receive_one(connections)
        assert isinstance(received, Received)
        assert received.frame == ask
        answer = Stats(request_id="a", values={"x": 1.0})
        connections.send({received.connection: bytearray(encode(answer))})
        assert decode_from_engine(FrameSplitter().feed(client.recv(65536))[0]) == answer
    assert receive_one(connections) == Disconnected(connection=received.connection)
    connections.send({received.connection: bytearray(b"late"), 99: bytearray(b"unknown")})


@pytest.mark.parametrize("bad", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", encode(HELLO)])
def test_bytes_that_are_no_server_frame_end_only_that_connection(
    path: Path, connections: Connections, bad: bytes
) -> None:
    with connected(path) as good, connected(path) as client:
        client.recv(65536)
        client.sendall(bad)
        assert isinstance(receive_one(connections), Disconnected)
        assert client.recv(1) == b""
        good.sendall(encode(Ask(request_id="a")))
        assert isinstance(receive_one(connections), Received)


def test_a_server_that_does_not_read_is_cut_off_and_never_blocks(
    path: Path, connections: Connections
) -> None:
    with connected(path) as client:
        client.recv(65536)
        client.sendall(encode(Ask(request_id="a")))
        received = receive_one(connections)
        assert isinstance(received, Received)
        piece = bytes(1024 * 1024)
        started = time.monotonic()
        for _ in range(2 * OUTBOX_BYTES_MAX // len(piece)):
            connections.send({received.connection: bytearray(piece)})
        assert time.monotonic() - started < 5
        assert receive_one(connections) == Disconnected(connection=received.connection)


def test_a_stop_wakes_the_receiver(connections: Connections) -> None:
    connections.ask_stop()
    assert connections.receive(None) == [StopAsked()]
    assert connections.receive(0.0) == []


def test_what_was_sent_before_the_close_still_arrives(path: Path) -> None:
    opened = Connections(path, HELLO)
    opened.open()
    with connected(path) as client:
        client.recv(65536)
        client.sendall(encode(Ask(request_id="a")))
        received = receive_one(opened)
        assert isinstance(received, Received)
        payload = bytes(3_000_000)
        opened.send({received.connection: bytearray(payload)})
        opened.stop_listening()
        # The kernel's buffer is smaller than the payload, so the rest goes out during the close.
        closer = threading.Thread(target=opened.close, args=(10.0,))
        closer.start()
        total = 0
        while data := client.recv(1 << 20):
            total += len(data)
        closer.join()
        assert total == len(payload)
