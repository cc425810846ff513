"""Which failures are waited out, and for how long."""

from __future__ import annotations

import random
import time

import asyncpg
import pytest

from appliance.errors import NotFound, StorageUnavailable
from appliance.store.retry import Verdict, reason, retrying, verdict


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncpg.ConnectionDoesNotExistError("lost"), Verdict.WAIT),
        (asyncpg.AdminShutdownError("57P01"), Verdict.WAIT),
        (asyncpg.CrashShutdownError("57P02"), Verdict.WAIT),
        (asyncpg.CannotConnectNowError("57P03"), Verdict.WAIT),
        (asyncpg.TooManyConnectionsError("53300"), Verdict.WAIT),
        (asyncpg.DiskFullError("53100"), Verdict.WAIT),
        (asyncpg.SerializationError("40001"), Verdict.WAIT),
        (asyncpg.DeadlockDetectedError("40P01"), Verdict.WAIT),
        (asyncpg.LockNotAvailableError("55P03"), Verdict.WAIT),
        (asyncpg.QueryCanceledError("57014"), Verdict.WAIT),
        (asyncpg.ReadOnlySQLTransactionError("25006"), Verdict.WAIT),
        (asyncpg.InsufficientPrivilegeError("42501"), Verdict.WAIT),
        (asyncpg.InternalClientError("cannot switch to state 12"), Verdict.WAIT),
        (asyncpg.InterfaceError("connection is closed"), Verdict.WAIT),
        (ConnectionRefusedError(), Verdict.WAIT),
        (FileNotFoundError(), Verdict.WAIT),
        (TimeoutError(), Verdict.WAIT),
        (asyncpg.InvalidPasswordError("28P01"), Verdict.REFUSE),
        (asyncpg.DataCorruptedError("XX001"), Verdict.REFUSE),
        (asyncpg.ProgramLimitExceededError("54000"), Verdict.REFUSE),
        (asyncpg.UndefinedTableError("42P01"), Verdict.BUG),
        (asyncpg.CharacterNotInRepertoireError("22021"), Verdict.BUG),
        (asyncpg.CheckViolationError("23514"), Verdict.BUG),
        (asyncpg.InterfaceError("another operation is in progress"), Verdict.BUG),
        (ValueError(), Verdict.BUG),
    ],
)
def test_a_failure_is_waited_out_refused_or_a_bug(error: Exception, expected: Verdict) -> None:
    assert verdict(error) is expected


class Flaky:
    """Fails with the given errors, one a call, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_passing_failure_is_tried_again_until_it_has_passed() -> None:
    flaky = Flaky(ConnectionRefusedError(), asyncpg.CannotConnectNowError("x"))
    assert await retrying(flaky, budget_s=5, jitter=random.Random(1)) == "done"
    assert flaky.calls == 3


async def test_a_lasting_failure_is_given_up_in_time_without_its_text() -> None:
    flaky = Flaky(*(asyncpg.DiskFullError("MARKER") for _ in range(1000)))
    started = time.monotonic()
    with pytest.raises(StorageUnavailable, match=r"DiskFullError \(53100\)") as given_up:
        await retrying(flaky, budget_s=0.3, jitter=random.Random(1))
    assert time.monotonic() - started < 2
    assert 2 < flaky.calls < 10
    assert "MARKER" not in given_up.value.message


async def test_a_failure_that_waiting_cannot_mend_and_a_bug_are_not_tried_again() -> None:
    refused = Flaky(asyncpg.DataCorruptedError("x"))
    with pytest.raises(StorageUnavailable):
        await retrying(refused, budget_s=5, jitter=random.Random(1))
    bug = Flaky(asyncpg.UndefinedTableError("x"))
    with pytest.raises(asyncpg.UndefinedTableError):
        await retrying(bug, budget_s=5, jitter=random.Random(1))
    expected = Flaky(NotFound("x"))
    with pytest.raises(NotFound):
        await retrying(expected, budget_s=5, jitter=random.Random(1))
    assert (refused.calls, bug.calls, expected.calls) == (1, 1, 1)


def test_a_reason_holds_a_kind_and_no_data() -> None:
    assert (
        reason(asyncpg.UniqueViolationError("Key (k)=(MARKER)")) == "UniqueViolationError (23505)"
    )
    assert reason(TimeoutError("MARKER")) == "TimeoutError"
