"""What a PostgreSQL error means to a repair, and which page it names. Pure.

The ledger's writers answer the same kinds otherwise (`store/retry.py`, `store/write_faults.py`): to them
a table that is not there is a bug of their own, and to a repair it is work that has gone away.
"""

from __future__ import annotations

import re
from enum import StrEnum

import asyncpg

from appliance.database_failure import FailureKind, failure_kind, routine_of


class RepairFault(StrEnum):
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
    FULL = "no connection is free"
    OTHER = "failed"


STOPS = frozenset({RepairFault.XID_STOP, RepairFault.MULTIXACT_STOP})
"""A server that gives out no IDs."""

_BY_KIND = {
    FailureKind.OUT_OF_XIDS: RepairFault.XID_STOP,
    FailureKind.OUT_OF_MULTIXACTS: RepairFault.MULTIXACT_STOP,
    FailureKind.LOCKED: RepairFault.LOCKED,
    FailureKind.CANCELLED: RepairFault.CANCELLED,
    FailureKind.DAMAGED: RepairFault.DAMAGED,
    FailureKind.MISSING_FILE: RepairFault.MISSING_FILE,
    FailureKind.DISK_FULL: RepairFault.DISK_FULL,
    FailureKind.NO_TABLE: RepairFault.GONE,
    FailureKind.NO_NAMESPACE: RepairFault.GONE,
    FailureKind.DENIED: RepairFault.DENIED,
    FailureKind.CONNECTION: RepairFault.CONNECTION,
    FailureKind.STARTING: RepairFault.CONNECTION,
    FailureKind.CONNECTIONS_FULL: RepairFault.FULL,
}


def repair_fault(error: BaseException) -> RepairFault:
    """What kind of failure an error is; of no kind that a repair answers, OTHER."""
    return _BY_KIND.get(failure_kind(error), RepairFault.OTHER)


_VALUE_ROUTINES = frozenset(
    {
        "heap_fetch_toast_slice",
        "lz4_decompress_datum",
        "lz4_decompress_datum_slice",
        "pglz_decompress_datum",
        "pglz_decompress_datum_slice",
        "toast_decompress_datum",
        "toast_decompress_datum_slice",
    }
)
"""They put a long value together (access/heap/heaptoast.c, access/common)."""
_INDEX_CORRUPTED = "XX002"


def is_value_fault(error: asyncpg.PostgresError) -> bool:
    """Whether a long value cannot be put together: its row can be read, and the value cannot."""
    return routine_of(error) in _VALUE_ROUTINES


def is_index_fault(error: asyncpg.PostgresError) -> bool:
    """Whether an index's own checks have found it damaged; they name no file."""
    return bool(error.sqlstate == _INDEX_CORRUPTED)


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
