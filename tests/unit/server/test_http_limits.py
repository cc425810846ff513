"""Bodies, heads and framings that go wrong: small answers with an envelope, never a 500."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from appliance.config import ServerConfig
from tests.raw_http import RawResponse, connect, exchange, parse
from tests.unit.server.door import Door, chat, open_door

PATH = "/v1/chat/completions"


def head(*lines: str, path: str = PATH) -> bytes:
    wanted = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *lines)
    return ("\r\n".join(wanted) + "\r\n\r\n").encode()


def assert_refused(response: RawResponse, status: int) -> None:
    assert response.status == status
    assert response.json["error"]["code"]
    assert response.headers["x-request-id"] == response.json["error"]["request_id"]


async def test_a_long_chat_of_more_than_a_megabyte_is_read(door: Door) -> None:
    messages = [{"role": "user", "content": "m" * 3_200}] * 400
    status, told = await door.complete(messages=messages)
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
async def test_a_body_over_the_limit_is_refused_while_it_is_read(encoding: str) -> None:
    async with open_door(ServerConfig(body_bytes_max=1_000_000)) as door:
        plain = json.dumps(chat("w" * 1_100_000)).encode()
        packers: dict[str, Callable[[bytes], bytes]] = {
            "identity": bytes,
            "gzip": gzip.compress,
            "deflate": zlib.compress,
        }
        pack = packers[encoding]
        status, told = await door.post(PATH, pack(plain), {"Content-Encoding": encoding})
        assert (status, told["error"]["code"]) == (413, "payload_too_large")
        assert await _chunked(door, plain) == 413
        door.say("ok")
        small = json.dumps(chat("w")).encode()
        assert (await door.post(PATH, pack(small), {"Content-Encoding": encoding}))[0] == 200


async def _chunked(door: Door, body: bytes) -> int:
    """The status of a body sent without announcing its size."""

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 65536):
            yield body[at : at + 65536]

    headers = {"Content-Type": "application/json"}
    async with door.session.post(door.url + PATH, data=pieces(), headers=headers) as answer:
        return answer.status


async def test_a_compressed_bomb_costs_no_more_than_the_limit() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = b"0" * (1024 * 1024)
    bomb = b"".join(packer.compress(zeros) for _ in range(1024)) + packer.flush()
    async with open_door(ServerConfig(body_bytes_max=2_000_000)) as door:
        tracemalloc.start()
        status, told = await door.post(PATH, bomb, {"Content-Encoding": "gzip"})
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (status, told["error"]["code"]) == (413, "payload_too_large")
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"{}"), ("gzip", b"not gzip"), ("gzip", gzip.compress(b"{}", mtime=0)[:-4])],
)
async def test_other_and_broken_encodings_are_refused(
    door: Door, encoding: str, body: bytes
) -> None:
    status, told = await door.post(PATH, body, {"Content-Encoding": encoding})
    assert (status, told["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/json; charset=test", "application/x-www-form-urlencoded"],
)
async def test_other_content_types_are_refused(door: Door, content_type: str) -> None:
    status, told = await door.post(PATH, b"{}", {"Content-Type": content_type})
    assert (status, told["error"]["code"]) == (415, "unsupported_media_type")


SLOW = ServerConfig(body_timeout_s=0.3)


async def test_a_body_that_does_not_come_times_out() -> None:
    async with open_door(SLOW) as door:
        raw = head("Content-Type: application/json", "Content-Length: 1000000") + b"0123456789"
        assert_refused(await exchange(door.port, raw), 408)


async def test_a_chunked_body_that_trickles_times_out_and_holds_up_nobody() -> None:
    async with open_door(SLOW) as door:
        connection = await connect(door.port)
        await connection.send(head("Content-Type: application/json", "Transfer-Encoding: chunked"))
        answer = asyncio.create_task(connection.read_until(b"body_timeout"))
        while not answer.done():
            await connection.send(b"1\r\n[\r\n")
            assert (await door.session.get(door.url + "/live")).status == 200
            await asyncio.sleep(0.05)
        assert parse(answer.result()).status == 408
        connection.close()


async def test_a_head_that_trickles_is_dropped() -> None:
    async with open_door(SLOW) as door:
        connection = await connect(door.port)
        closed = asyncio.create_task(connection.read_all())
        for byte in head("X: y" * 100)[:-4]:
            if closed.done():
                break
            await connection.send(bytes([byte]))
            await asyncio.sleep(0.05)
        assert await closed == b""
        connection.close()


async def test_an_announced_size_over_the_limit_is_refused_before_it_is_sent(door: Door) -> None:
    size = 33 * 1024 * 1024
    lines = ("Content-Type: application/json", f"Content-Length: {size}", "Expect: 100-continue")
    response = await exchange(door.port, head(*lines))
    assert_refused(response, 413)


async def test_a_client_that_asks_first_may_send(door: Door) -> None:
    door.say("ok")
    body = json.dumps(chat()).encode()
    connection = await connect(door.port)
    await connection.send(
        head(
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Expect: 100-continue",
        )
    )
    assert await connection.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(body)
    assert parse(await connection.read_until(b'"usage"')).status == 200
    connection.close()


async def test_endless_heads_and_addresses_are_refused(door: Door) -> None:
    many = head(*(f"X-{number}: {'v' * 8000}" for number in range(100)))
    long = f"GET /{'a' * 100_000} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    for raw in (many, long):
        response = await exchange(door.port, raw)
        assert response.status in (400, 414, 431)


AMBIGUOUS = [
    b"POST /v1/models HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nX-Abc: \rxTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;a\nb\r\nxx\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nbad\ntrailer\r\n\r\n",
    b"GET /v1/models HTTP/1.1\nHost: h\n\n",
]


@pytest.mark.parametrize("raw", AMBIGUOUS)
async def test_ambiguous_framing_gets_one_refusal_and_a_closed_connection(
    door: Door, raw: bytes
) -> None:
    response = await exchange(door.port, raw)
    assert response.status == 400
    assert b"HTTP/1.1" not in response.rest


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_unknown_addresses_and_methods_get_an_envelope(door: Door, method: str) -> None:
    async with door.session.request(method, door.url + "/no/such/place") as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "not_found"
    async with door.session.request(method, door.url + PATH) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "POST"
        assert (await answer.json())["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"x":' + b"[" * 100_000 + b"0" + b"]" * 100_000 + b"}",
        b'{"model":"m","seed":' + b"9" * 5_000 + b',"messages":[]}',
        b"[" * 5_000_000,
        b'{"model":"a \x97"}',
        b"\xef\xbb\xbf{}",
        b"",
    ],
)
async def test_hostile_json_is_refused_and_the_process_lives(door: Door, body: bytes) -> None:
    pid = os.getpid()
    status, told = await door.post(PATH, body)
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")
    door.say("ok")
    assert (await door.complete())[0] == 200
    assert os.getpid() == pid
