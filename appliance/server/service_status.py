"""Tells the service manager how the server is: what its start waits for, that it serves and turns.

The watchdog is fed by a task of the event loop, so a loop that is held up feeds nothing. Never: decides
what makes the server ready, which is `readiness.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from appliance.server.readiness import Readiness
from appliance.service_manager import ServiceManager

READY_POLL_S = 0.25


@asynccontextmanager
async def heard_by(manager: ServiceManager, readiness: Readiness) -> AsyncIterator[None]:
    """While the body runs, `manager` hears of the server. To be entered once the server listens."""
    speaking = asyncio.create_task(_speak(manager, readiness))
    try:
        yield
    finally:
        speaking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await speaking


async def _speak(manager: ServiceManager, readiness: Readiness) -> None:
    # The start is over when /ready says so for the first time. What it waits for may take long (a model
    # that loads), and each look extends it; a loop that is held up looks no more.
    while reasons := await readiness.reasons():
        if readiness.draining:
            return
        manager.starting("; ".join(reason.message for reason in reasons))
        await asyncio.sleep(READY_POLL_S)
    manager.ready("serving")
    while (every_s := manager.feed_every_s) is not None:
        manager.alive()
        # Half of it: a moment too early is not counted as its time.
        await asyncio.sleep(every_s / 2)
