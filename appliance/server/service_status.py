"""Tells the service manager how the server is: what its start waits for, that it serves and turns.

The watchdog is fed by a task of the event loop, so a loop that is held up feeds nothing. Never: decides
what makes the server ready, which is `readiness.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from appliance.server.readiness import Readiness
from appliance.service_manager import ServiceManager

log = logging.getLogger("appliance.server")

READY_POLL_S = 0.25
START_S_MAX = 1200.0
"""How long `systemctl start` waits for a server whose engine or database does not come; then `systemctl
status` says what is missing. Longer than an upgrade waits before it takes a version back."""


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
    # that loads), and each look extends it; a loop that is held up looks no more. What never comes must
    # not hold up whoever waits for the start: from then on the server is one that answers 503.
    until = time.monotonic() + START_S_MAX
    is_started = False
    while missing := await _missing(readiness):
        if readiness.draining:
            return
        if time.monotonic() < until:
            manager.starting(missing)
        elif not is_started:
            is_started = True
            manager.ready(missing)
            log.warning("start_not_waited_for", extra={"missing": missing})
        else:
            manager.status(missing)
            manager.alive()
        await asyncio.sleep(READY_POLL_S)
    manager.ready("serving")
    while (every_s := manager.feed_every_s) is not None:
        manager.alive()
        # Half of it: a moment too early is not counted as its time.
        await asyncio.sleep(every_s / 2)


async def _missing(readiness: Readiness) -> str:
    return "; ".join(reason.message for reason in await readiness.reasons())
