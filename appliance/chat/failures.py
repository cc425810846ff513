"""Replies that failed before their first token, kept for the experiments that their chats are in.

Owns which failures count: nothing else is stored of them, so an arm whose every reply fails would look
healthy. Never: on the way of a turn that succeeds, or waited for by one that failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from appliance.chat.running import Key
from appliance.chat.trials import Trials
from appliance.chat.turn_plan import Plan
from appliance.errors import Conflict, ContextLengthExceeded, InvalidRequest, NotFound

log = logging.getLogger("appliance.chat")

PENDING_MAX = 64
"""Failures that wait to be kept; those beyond are told in the log alone, of whichever arm they are."""

KeepFailure = Callable[[str, UUID, bool | None], Awaitable[None]]
"""Keeps one: tenant, conversation, and whether its prompt is another than in the other arms, None where
there was none."""


class Failures:
    """Keeps failures in tasks of its own; safe to share between all requests."""

    def __init__(self, trials: Trials, keep: KeepFailure | None) -> None:
        self._trials = trials
        self._keep = keep
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, key: Key, error: Exception, plan: Plan | None) -> None:
        """A turn of a conversation failed, before or after it had a plan, and nothing is stored of it."""
        if self._keep is None or not self._trials.is_any or _is_askers_own(error):
            return
        if len(self._tasks) >= PENDING_MAX:
            log.warning("failure_not_kept", extra={"error": type(error).__name__})
            return
        exposes = None
        if plan is not None:
            if plan.trial is None:
                return
            exposes = self._trials.exposes_of(plan)
        task = asyncio.create_task(self._kept(key, exposes), name="keep-failure")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for those that are being kept."""
        await asyncio.gather(*self._tasks)

    async def _kept(self, key: Key, exposes: bool | None) -> None:
        assert self._keep is not None
        try:
            await self._keep(*key, exposes)
        except Exception as error:
            # Whatever the database has: the turn has failed already, and its user was told.
            log.warning("failure_not_kept", extra={"error": type(error).__name__})


def _is_askers_own(error: Exception) -> bool:
    """What was asked for cannot be, with whatever version of a prompt."""
    if isinstance(error, ContextLengthExceeded):
        return False
    return isinstance(error, (InvalidRequest, NotFound, Conflict))
