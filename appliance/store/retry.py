"""Which database failures pass, and how long they are waited for. Never: hides a bug in a statement."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from appliance.database_failure import DatabaseFailure, FailureKind, failure_kind
from appliance.errors import StorageUnavailable

log = logging.getLogger("appliance.store")

T = TypeVar("T")

DELAY_MIN_S = 0.02
DELAY_MAX_S = 1.0

_PASSING = frozenset(
    {
        FailureKind.CONNECTION,
        FailureKind.STARTING,
        FailureKind.CONNECTIONS_FULL,
        FailureKind.DISK_FULL,
        FailureKind.RESOURCES,
        FailureKind.READ_ONLY,
        FailureKind.SERIALIZATION,
        FailureKind.LOCKED,
        FailureKind.CANCELLED,
        FailureKind.DENIED,  # a privilege was revoked: an operator's slip, mended from outside
    }
)
_OF_THE_STATEMENT = frozenset({FailureKind.VALUE, FailureKind.STATEMENT, FailureKind.NO_TABLE})


class Verdict(enum.Enum):
    """What to do about a failure."""

    WAIT = "wait"
    REFUSE = "refuse"
    BUG = "bug"


def verdict(error: BaseException) -> Verdict:
    """WAIT: it passes or an operator mends it. REFUSE: not by waiting. BUG: our statement is wrong."""
    if isinstance(error, asyncpg.InterfaceError):
        # Raised without a code when the connection was lost before or under the statement.
        return Verdict.WAIT if "clos" in str(error) else Verdict.BUG
    if not isinstance(error, DatabaseFailure):
        return Verdict.BUG
    kind = failure_kind(error)
    if kind in _PASSING:
        return Verdict.WAIT
    return Verdict.BUG if kind in _OF_THE_STATEMENT else Verdict.REFUSE


async def retrying(
    operation: Callable[[], Awaitable[T]], *, budget_s: float, jitter: random.Random
) -> T:
    """Run an idempotent operation, again while the database is away, for about `budget_s`.

    Raises StorageUnavailable when the time is used up or waiting is of no use; bugs rise unchanged.
    Delays double up to a second and are jittered, so that a restart meets no storm of connections.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + budget_s
    delay_s = DELAY_MIN_S
    while True:
        try:
            return await operation()
        except DatabaseFailure as error:
            decision = verdict(error)
            if decision is Verdict.BUG:
                raise
            pause_s = delay_s * jitter.uniform(0.5, 1.5)
            if decision is Verdict.REFUSE or clock() + pause_s > deadline:
                raise StorageUnavailable(
                    f"the database does not answer, so nothing was saved: {reason(error)}"
                ) from error
            if delay_s == DELAY_MIN_S:  # One line for a failure, however often it is met.
                log.warning("database_retry", extra={"reason": reason(error), "budget_s": budget_s})
        await asyncio.sleep(pause_s)
        delay_s = min(delay_s * 2, DELAY_MAX_S)


def reason(error: BaseException) -> str:
    """The kind of a failure in words that hold no data: its class, and its SQLSTATE if it has one."""
    code = getattr(error, "sqlstate", None)
    return f"{type(error).__name__} ({code})" if code else type(error).__name__
