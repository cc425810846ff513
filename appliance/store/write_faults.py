"""Whose fault it is when a batch cannot be written: of one of its entries, or of the database.

Pure; never retries or decides what becomes of an entry.
"""

from __future__ import annotations

import enum

from appliance.database_failure import OUT_OF_IDS, FailureKind, failure_kind

_OF_ONE_ENTRY = frozenset(
    {
        FailureKind.LOCKED,  # somebody holds the conversation
        FailureKind.SERIALIZATION,
        FailureKind.CANCELLED,
        FailureKind.LIMIT,
        FailureKind.DAMAGED,
        FailureKind.MISSING_FILE,
        FailureKind.RAISED,
        FailureKind.INTERNAL,
    }
)
"""What one statement touched, as far as anybody knows: somebody's own trigger, a fault inside the server.
Held for the database's, one such entry would stop all the others for good."""


class Fault(enum.Enum):
    """ENTRY_BUG: this entry can never be written. ENTRY_HELD: not now, others may be. DATABASE:
    none can."""

    ENTRY_BUG = "entry_bug"
    ENTRY_HELD = "entry_held"
    DATABASE = "database"


def fault_of(error: BaseException) -> Fault:
    """Whose fault a failure of a batch is, for all that the failure itself tells."""
    kind = failure_kind(error)
    # A value that does not fit its column's type is found before anything is sent.
    if kind is FailureKind.VALUE or isinstance(error, ValueError):
        return Fault.ENTRY_BUG
    return Fault.ENTRY_HELD if kind in _OF_ONE_ENTRY else Fault.DATABASE


def is_out_of_ids(error: BaseException) -> bool:
    """Whether the database gives out no transaction or multixact IDs any more: reads still work."""
    return failure_kind(error) in OUT_OF_IDS
