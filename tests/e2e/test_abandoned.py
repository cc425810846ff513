"""Two hundred requests, half of them cut off at random moments, leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import pytest

from appliance.wire.client import EngineClient
from appliance.wire.frames import Stats
from tests.e2e.box import Box

pytestmark = [pytest.mark.model, pytest.mark.slow]

REQUESTS = 200
AT_ONCE = 8
SEED = 20_261
MEMORY_GROWTH_BYTES_MAX = 64 * 1024 * 1024


def test_two_hundred_requests_half_cut_off_leave_no_page_held(box: Box) -> None:
    model = box.request("GET", "/v1/models")["data"][0]["id"]
    chance = random.Random(SEED)
    plans = [
        (f"Request {n % 10}: say something about {chance.choice(['sea', 'sky', 'sun'])}.", cut)
        for n, cut in enumerate(chance.uniform(0, 1.5) if n % 2 else None for n in range(REQUESTS))
    ]
    run_all(box, model, plans[:40])
    settle(box)
    memory = {name: box.child(name).memory_info().rss for name in ("engine", "server")}
    before = engine_stats(box)
    terminal = run_all(box, model, plans)
    settle(box)

    whole = [count for (_, cut), count in zip(plans, terminal, strict=True) if cut is None]
    assert whole == [1] * (REQUESTS // 2)
    assert all(count <= 1 for count in terminal)
    after = engine_stats(box)
    ended = {
        name: after[name] - before[name] for name in ("finished", "cancelled", "failed", "refused")
    }
    # A connection reset before its request was read submits nothing.
    assert REQUESTS // 2 <= after["submitted"] - before["submitted"] <= REQUESTS
    assert sum(ended.values()) == after["submitted"] - before["submitted"]
    assert ended["cancelled"] > REQUESTS // 10, "hardly a request was cut off while it ran"
    assert ended["failed"] == ended["refused"] == 0
    assert after["pages_leased"] == 0
    # The cache's memory is used as pages fill; the budget of all pages is 2 GiB.
    cached = (after["pages_cached"] - before["pages_cached"]) * 2 * 2**30 / after["pages_total"]
    for name, allowed in (("engine", cached), ("server", 0)):
        grown = box.child(name).memory_info().rss - memory[name]
        assert grown < allowed + MEMORY_GROWTH_BYTES_MAX, f"{name} grew by {grown} bytes"


def run_all(box: Box, model: str, plans: list[tuple[str, float | None]]) -> list[int]:
    """Run the plans, eight at a time; returns how many terminal events each connection carried."""
    terminal = [0] * len(plans)
    left = iter(range(len(plans)))
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                index = next(left, None)
            if index is None:
                return
            terminal[index] = one_request(box, model, *plans[index])

    workers = [threading.Thread(target=worker) for _ in range(AT_ONCE)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(600)
        assert not thread.is_alive()
    return terminal


def one_request(box: Box, model: str, text: str, cut_after_s: float | None) -> int:
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens": 16,
            "messages": [{"role": "user", "content": text}],
        }
    ).encode()
    address = urlsplit(box.url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (address.netloc.encode(), len(body), body)
        )
        if cut_after_s is not None:
            time.sleep(cut_after_s)
            # SO_LINGER 0 sends RST, the rudest way to leave.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return 0
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    return answer.count(b'"finish_reason":"') + answer.count(b'data: {"error"')


def engine_stats(box: Box) -> dict[str, float]:
    """The engine's own figures, after it has proved that every page is in exactly one place."""

    async def ask() -> Stats:
        async with EngineClient(box.data_dir / "run" / "engine.sock") as client:
            await client.wait_ready()
            return await client.ask(check=True)

    stats = asyncio.run(ask())
    assert stats.check_failure is None
    return stats.values


def settle(box: Box) -> None:
    deadline = time.monotonic() + 120
    while box.metric("appliance_engine_running") + box.metric("appliance_engine_waiting") > 0:
        assert time.monotonic() < deadline, "requests are still running"
        time.sleep(0.2)
