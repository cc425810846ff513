"""A worker that fails leaves none behind."""

from __future__ import annotations

import asyncio

import pytest

from appliance.dbops.repair.workers import together
from appliance.errors import NotRunning


async def test_where_one_fails_the_others_have_ended_before_that_is_told() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as one that tells the server to break its statement off
            ended.append("work")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise NotRunning("away")

    with pytest.raises(NotRunning, match="away"):
        async with asyncio.timeout(60):
            await together([work(), fail()])
    assert ended == ["work"]
