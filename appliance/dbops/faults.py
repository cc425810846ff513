"""What a PostgreSQL error means to a repair: by SQLSTATE and routine, never by its words. Pure.

The words are translated (`lc_messages`), and differ between 15 and 18; SQLSTATE 54000 alone also stands
for other limits. The routine that raised the error is neither: measured on 15.18 and 18.6.

The ledger's writers ask other questions of the same codes (`store/retry.py`: is it worth waiting;
`store/write_faults.py`: is one turn at fault, or the database) and so answer otherwise: to them a table
that is not there (42P01) is a bug of their own, and to a repair it is work that has gone away.
"""

from __future__ import annotations

import re
from enum import StrEnum

import asyncpg

from appliance.database_failure import DatabaseFailure


class Fault(StrEnum):
    """Kinds of failure that are answered differently."""

    XID_STOP = "out of transaction IDs"
    MULTIXACT_STOP = "out of multixacts"
    LOCKED = "locked by somebody else"
    PINNED = "a page of it is in use by somebody else"
    """Told by no error: a VACUUM waits for it without end, and a run breaks it off."""
    ENDING = "not ended yet"
    """Told by no error: a session that was told to end takes its time."""
    RETURNED = "held by one that came back"
    """Told by no error: a VACUUM won nothing, and a standby that was ended is back again and again."""
    CANCELLED = "cancelled"
    DAMAGED = "damaged data"
    MISSING_FILE = "a file of it is missing"
    DISK_FULL = "no space left"
    GONE = "no longer there"
    DENIED = "not allowed"
    CONNECTION = "connection lost"
    OTHER = "failed"


STOPS = frozenset({Fault.XID_STOP, Fault.MULTIXACT_STOP})
"""A server that gives out no IDs."""

_BY_ROUTINE = {
    "GetNewTransactionId": Fault.XID_STOP,
    "GetNewMultiXactId": Fault.MULTIXACT_STOP,
}
_PROGRAM_LIMIT_EXCEEDED = "54000"

_BY_STATE = {
    "55P03": Fault.LOCKED,  # lock_timeout
    "40P01": Fault.LOCKED,  # deadlock
    "57014": Fault.CANCELLED,
    "XX001": Fault.DAMAGED,
    "XX002": Fault.DAMAGED,  # an index's
    "58030": Fault.DAMAGED,  # a sector that the disk cannot read
    "58P01": Fault.MISSING_FILE,
    "53100": Fault.DISK_FULL,
    "42P01": Fault.GONE,
    "3F000": Fault.GONE,  # its schema
    "3D000": Fault.GONE,  # its database
    "42501": Fault.DENIED,
    "57P01": Fault.CONNECTION,  # ended by an administrator, or the server is stopping
    "57P02": Fault.CONNECTION,  # another process crashed
    "57P03": Fault.CONNECTION,  # still starting
}
_CONNECTION_CLASS = "08"


def fault_of(error: BaseException) -> Fault:
    """What kind of failure an error is; of no kind known here, OTHER."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state == _PROGRAM_LIMIT_EXCEEDED:
            return _BY_ROUTINE.get(routine_of(error), Fault.OTHER)
        if state.startswith(_CONNECTION_CLASS):
            return Fault.CONNECTION
        return _BY_STATE.get(state, Fault.OTHER)
    if isinstance(error, DatabaseFailure):
        return Fault.CONNECTION
    return Fault.OTHER


def routine_of(error: asyncpg.PostgresError) -> str:
    """The function of the server that raised an error; empty when it does not say."""
    return str(getattr(error, "server_source_function", "") or "")


_FILE = re.compile(r"\b(?:base/\d+|global|pg_tblspc/\d+/[^/\s]+/\d+)/(\d+)")
_NUMBER = re.compile(r"\d+")
_BLOCKS = re.compile(r"\d+\.\.\d+")


def damaged_file(error: BaseException) -> int | None:
    """The filenode that an unreadable page is in: paths are not translated. None when none is named."""
    found = _FILE.search(str(error))
    return None if found is None else int(found[1])


def damaged_block(error: BaseException) -> int | None:
    """The number of the (first) unreadable page; None when the error names none.

    It is the message's first number. 18 reads several pages at once, and where more than one of them is
    damaged, the message has their count and range (`2 invalid pages among blocks 5..8`) and the detail
    names the first.
    """
    text = str(error)
    found = _FILE.search(text)
    if found is None:
        return None
    words = text[: found.start()]
    if _BLOCKS.search(words):
        words = str(getattr(error, "detail", "") or "")
    number = _NUMBER.search(words)
    return None if number is None else int(number[0])
