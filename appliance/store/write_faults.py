"""Whose fault it is when a batch cannot be written: of one of its entries, or of the database.

Pure; never retries or decides what becomes of an entry.
"""

from __future__ import annotations

import enum

import asyncpg

_BUG_CLASSES = frozenset({"21", "22", "23"})  # bad value, broken constraint
_HELD_CLASSES = frozenset({"P0", "XX"})
"""Raised by somebody's own trigger, or by a fault inside the server: of what one statement touched, as
far as anybody knows. Held for the database's, one such entry would stop all the others for good."""
_HELD_CODES = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # lock_timeout: somebody holds the conversation
        "57014",  # statement_timeout
        "58030",  # a bad sector, of a relation: a log that cannot be written stops the server
        "58P01",  # a missing file, or segment, of a relation
    }
)
_LIMIT = "54000"
_EXHAUSTED = frozenset({"GetNewTransactionId", "GetNewMultiXactId"})
"""Where PostgreSQL refuses to give out IDs. The code alone says only that some limit was met, and the
message differs by version and language; the routine is the same in 14 to 18."""


class Fault(enum.Enum):
    """ENTRY_BUG: this entry can never be written. ENTRY_HELD: not now, others may be. DATABASE:
    none can."""

    ENTRY_BUG = "entry_bug"
    ENTRY_HELD = "entry_held"
    DATABASE = "database"


def fault_of(error: BaseException) -> Fault:
    """Whose fault a failure of a batch is, for all that the failure itself tells."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code[:2] in _BUG_CLASSES:
            return Fault.ENTRY_BUG
        if code[:2] in _HELD_CLASSES or code in _HELD_CODES:
            return Fault.ENTRY_HELD
        if code == _LIMIT and not is_out_of_ids(error):
            return Fault.ENTRY_HELD
        return Fault.DATABASE
    # A value that does not fit its column's type is found before anything is sent.
    return Fault.ENTRY_BUG if isinstance(error, ValueError) else Fault.DATABASE


def is_out_of_ids(error: BaseException) -> bool:
    """Whether the database gives out no transaction or multixact IDs any more: reads still work."""
    if not isinstance(error, asyncpg.PostgresError) or error.sqlstate != _LIMIT:
        return False
    return getattr(error, "server_source_function", None) in _EXHAUSTED
