"""Which database failures pass, and how long they are waited for. Never: hides a bug in a statement."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.errors import StorageUnavailable

log = logging.getLogger("appliance.store")

T = TypeVar("T")

DELAY_MIN_S = 0.02
DELAY_MAX_S = 1.0

# SQLSTATE classes and codes (PostgreSQL documentation, appendix A).
_TRANSIENT_CLASSES = frozenset({"08", "53"})  # connection lost; out of memory, disk or connections
_TRANSIENT_CODES = frozenset(
    {
        "25006",  # read-only transaction: a standby, until it is promoted
        "40001",  # serialization failure
        "40P01",  # deadlock
        "42501",  # a privilege was revoked: an operator's slip, mended from outside
        "55P03",  # lock_timeout
        "57014",  # statement_timeout
        "57P01",  # terminated by an administrator
        "57P02",  # another backend crashed
        "57P03",  # starting up, shutting down or recovering
        "57P05",  # idle_session_timeout
    }
)
_BUG_CLASSES = frozenset({"21", "22", "23", "42"})  # bad value, broken constraint, bad statement


class Verdict(enum.Enum):
    """What to do about a failure."""

    WAIT = "wait"
    REFUSE = "refuse"
    BUG = "bug"


def verdict(error: BaseException) -> Verdict:
    """WAIT: it passes or an operator mends it. REFUSE: not by waiting. BUG: our statement is wrong."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code in _TRANSIENT_CODES or code[:2] in _TRANSIENT_CLASSES:
            return Verdict.WAIT
        return Verdict.BUG if code[:2] in _BUG_CLASSES else Verdict.REFUSE
    if isinstance(error, asyncpg.InterfaceError):
        # Raised without a code when the connection was lost before or under the statement.
        return Verdict.WAIT if "clos" in str(error) else Verdict.BUG
    # InternalClientError: the server said goodbye between the two halves of a statement.
    return Verdict.WAIT if isinstance(error, DatabaseFailure) else Verdict.BUG


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
