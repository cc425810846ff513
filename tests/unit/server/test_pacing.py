"""Following one request: pings in silences, the end at a drain, clean-up however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from appliance.errors import ShuttingDown
from appliance.server.drain import Drain
from appliance.server.pacing import Ping, paced


class Source:
    """Yields the given waits as numbers; remembers how it ended."""

    def __init__(self, *waits_s: float) -> None:
        self.waits_s = waits_s
        self.fails_after: int | None = None
        self.ended = ""

    async def events(self) -> AsyncGenerator[int, None]:
        try:
            for number, wait_s in enumerate(self.waits_s):
                if number == self.fails_after:
                    raise ValueError("boom")
                await asyncio.sleep(wait_s)
                yield number
            self.ended = "exhausted"
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # clean-up that takes a moment
            self.ended = "cancelled"
            raise
        except GeneratorExit:
            self.ended = "closed"
            raise


async def collect(source: Source, drain: Drain, interval_s: float = 10.0) -> list[int | Ping]:
    async with aclosing(paced(source.events(), interval_s=interval_s, drain=drain)) as steps:
        return [step async for step in steps]


async def test_events_pass_in_order_and_silences_give_pings() -> None:
    source = Source(0, 0.25, 0)
    steps = await collect(source, Drain(), interval_s=0.1)
    assert [step for step in steps if not isinstance(step, Ping)] == [0, 1, 2]
    assert 1 <= steps.count(Ping()) <= 3
    assert source.ended == "exhausted"


async def test_a_request_that_has_not_started_ends_when_draining_begins() -> None:
    drain, source = Drain(), Source(60)
    asyncio.get_running_loop().call_later(0.05, drain.begin)
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(collect(source, drain), 30)
    assert source.ended == "cancelled"


async def test_a_started_request_goes_on_while_draining_and_ends_at_the_cut() -> None:
    drain, source = Drain(), Source(0, 0.1, 5)
    seen: list[int | Ping] = []
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, drain.begin)
    loop.call_later(0.3, drain.cut)

    async def follow() -> None:
        async with aclosing(paced(source.events(), interval_s=10, drain=drain)) as steps:
            async for step in steps:
                seen.append(step)

    with pytest.raises(ShuttingDown):
        await follow()
    assert seen == [0, 1]
    assert source.ended == "cancelled"


async def test_closing_and_cancelling_wait_for_the_sources_clean_up() -> None:
    closed = Source(0, 5)
    async with aclosing(paced(closed.events(), interval_s=10, drain=Drain())) as steps:
        assert await anext(steps) == 0
    assert closed.ended == "closed"

    cancelled = Source(5)
    task = asyncio.create_task(collect(cancelled, Drain()))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.ended == "cancelled"


async def test_an_error_of_the_source_comes_through() -> None:
    source = Source(0, -1)
    source.fails_after = 1
    with pytest.raises(ValueError, match="boom"):
        await collect(source, Drain())
