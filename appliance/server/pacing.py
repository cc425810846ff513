"""Follows one running request: its events as they come, a ping in every silence, its end at a drain.

Owns the waiting; never formats or sends anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance.errors import ShuttingDown
from appliance.server.drain import Drain

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Nothing happened for one interval."""


async def paced(
    source: AsyncGenerator[T, None], *, interval_s: float, drain: Drain
) -> AsyncGenerator[T | Ping, None]:
    """The events of `source`, with a `Ping` after every `interval_s` of silence.

    Raises ShuttingDown when the process drains before the first event, or cuts after it. However this
    ends (exhausted, closed, cancelled), `source` has been closed and its clean-up awaited.
    """
    async with aclosing(source):
        started = False
        while True:
            step = asyncio.ensure_future(_next(source))
            try:
                while not step.done():
                    ending = drain.ending(started=started)
                    waited: tuple[asyncio.Future[Any], ...] = (step, ending)
                    await asyncio.wait(
                        waited, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if step.done():
                        break
                    if ending.done():
                        raise ShuttingDown("The server is shutting down; send the request again.")
                    yield Ping()
            finally:
                await _settle(step)
            event = step.result()
            if event is None:
                return
            started = True
            yield event


async def _next(source: AsyncGenerator[T, None]) -> T | None:
    return await anext(source, None)


async def _settle(step: asyncio.Task[T]) -> None:
    """Cancel the step if it still runs, and wait until its clean-up is done."""
    if not step.done():
        step.cancel()
        await asyncio.wait({step})
