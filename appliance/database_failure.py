"""What a statement or a connection to PostgreSQL may raise that is no bug, and of which kind it is.

Owns the one table of SQLSTATEs and routines, not of words, which are translated (`lc_messages`) and
differ by version. Never: says what is to be done about a kind; writers and repairs answer differently.
"""

from __future__ import annotations

import enum

import asyncpg

DatabaseFailure = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""TimeoutError is an OSError. InternalClientError ("another operation is in progress") is for a statement
that comes between a server's last words, as when its postmaster was killed, and the connection's end."""


class FailureKind(enum.Enum):
    """What has happened."""

    OUT_OF_XIDS = enum.auto()
    OUT_OF_MULTIXACTS = enum.auto()
    LIMIT = enum.auto()
    """Some other limit of the program, as of an index's row."""
    LOCKED = enum.auto()
    """A lock was waited for in vain, or for each other."""
    SERIALIZATION = enum.auto()
    CANCELLED = enum.auto()
    CONNECTION = enum.auto()
    """It is lost: the server ends it, or does not answer."""
    STARTING = enum.auto()
    """The server is starting up, shutting down or recovering."""
    LOGIN = enum.auto()
    """No such role, a wrong password, refused by pg_hba.conf."""
    CONNECTIONS_FULL = enum.auto()
    DISK_FULL = enum.auto()
    RESOURCES = enum.auto()
    """Memory, or another limit of the configuration."""
    READ_ONLY = enum.auto()
    DENIED = enum.auto()
    NO_TABLE = enum.auto()
    NO_NAMESPACE = enum.auto()
    """The schema or the database is not there."""
    STATEMENT = enum.auto()
    """It is wrong by itself."""
    VALUE = enum.auto()
    """A bad value, or one that breaks a constraint."""
    RAISED = enum.auto()
    """By somebody's own function or trigger."""
    DAMAGED = enum.auto()
    MISSING_FILE = enum.auto()
    INTERNAL = enum.auto()
    OTHER = enum.auto()


OUT_OF_IDS = frozenset({FailureKind.OUT_OF_XIDS, FailureKind.OUT_OF_MULTIXACTS})
"""The server gives out none of these any more; reads still work."""

ROUTINES_OUT_OF_IDS = {
    "GetNewTransactionId": FailureKind.OUT_OF_XIDS,
    "GetNewMultiXactId": FailureKind.OUT_OF_MULTIXACTS,
}
"""Where PostgreSQL refuses to give out IDs. The code alone says only that some limit was met; the routine
is the same in 14 to 18 (measured on 15.18 and 18.6)."""

_PROGRAM_LIMIT_EXCEEDED = "54000"

# PostgreSQL documentation, appendix A.
_BY_CODE = {
    "25006": FailureKind.READ_ONLY,  # a standby, until it is promoted
    "3D000": FailureKind.NO_NAMESPACE,
    "3F000": FailureKind.NO_NAMESPACE,
    "40001": FailureKind.SERIALIZATION,
    "40P01": FailureKind.LOCKED,  # deadlock
    "42501": FailureKind.DENIED,
    "42P01": FailureKind.NO_TABLE,
    "53100": FailureKind.DISK_FULL,
    "53300": FailureKind.CONNECTIONS_FULL,
    "55P03": FailureKind.LOCKED,  # lock_timeout
    "57014": FailureKind.CANCELLED,  # statement_timeout, or by somebody
    "57P01": FailureKind.CONNECTION,  # ended by an administrator, or the server is stopping
    "57P02": FailureKind.CONNECTION,  # another process crashed
    "57P03": FailureKind.STARTING,
    "57P05": FailureKind.CONNECTION,  # idle_session_timeout
    "58030": FailureKind.DAMAGED,  # a bad sector of a relation (one of the log stops the server)
    "58P01": FailureKind.MISSING_FILE,
    "XX001": FailureKind.DAMAGED,
    "XX002": FailureKind.DAMAGED,  # an index's
}
_BY_CLASS = {
    "08": FailureKind.CONNECTION,
    "21": FailureKind.VALUE,
    "22": FailureKind.VALUE,
    "23": FailureKind.VALUE,
    "28": FailureKind.LOGIN,
    "42": FailureKind.STATEMENT,
    "53": FailureKind.RESOURCES,
    "P0": FailureKind.RAISED,
    "XX": FailureKind.INTERNAL,
}


def failure_kind(error: BaseException) -> FailureKind:
    """The kind of a failure; OTHER of one that is not known here, and of what is none of PostgreSQL's."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        if code == _PROGRAM_LIMIT_EXCEEDED:
            return ROUTINES_OUT_OF_IDS.get(routine_of(error), FailureKind.LIMIT)
        return _BY_CODE.get(code) or _BY_CLASS.get(code[:2], FailureKind.OTHER)
    return FailureKind.CONNECTION if isinstance(error, DatabaseFailure) else FailureKind.OTHER


def routine_of(error: asyncpg.PostgresError) -> str:
    """The function of the server that raised an error; empty when it does not say."""
    return str(getattr(error, "server_source_function", "") or "")
