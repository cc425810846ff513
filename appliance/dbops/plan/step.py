"""One step of a plan: what is done to what, why, how large it is, and what has to be agreed to.

Values only. Never: decides which steps there are, or takes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class StepKind(StrEnum):
    """What a step does; those of one kind are taken in the same way."""

    END_SESSION = "end session"
    END_OWNER = "end the owner of temporary tables"
    END_STANDBY = "end standby"
    FINISH_PREPARED = "finish prepared transaction"
    DROP_SLOT = "drop slot"
    DROP_TEMP = "drop temporary table"
    DROP_TEMP_OFFLINE = "drop temporary table in single-user mode"
    ASK = "only a person can do this"
    VACUUM = "vacuum"
    ZERO_PAGES = "vacuum, giving damaged pages up"
    FREEZE_ROWS = "freeze rows by force, then vacuum"
    REFRESH = "refresh the database's age"
    AUTOVACUUM = "let autovacuum in"
    PROBE = "try a write"
    REPAIR = "repair what was skipped"
    REINDEX = "rebuild indexes"
    REINDEX_LOCKED = "rebuild indexes while writes wait"


class Consent(StrEnum):
    """Kinds of destruction, each agreed to by name (`--yes KIND`)."""

    SESSION = "session"
    STANDBY = "standby"
    LOCK = "lock"
    PREPARED_COMMIT = "prepared-commit"
    PREPARED_ROLLBACK = "prepared-rollback"
    SLOT = "slot"
    TEMP_TABLE = "temp-table"
    SINGLE_USER = "single-user"
    ZERO_DAMAGED_PAGES = "zero-damaged-pages"
    FREEZE_BAD_ROWS = "freeze-bad-rows"
    BLOCKING_REINDEX = "blocking-reindex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to take a destructive step: what has to be agreed to, and what is lost by it."""

    consent: Consent
    statements: tuple[str, ...]
    loses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`key` names the step in the run's journal: the same deed has the same key in every plan.

    A destructive step has `choices`, any other one has `statements` (or none: see its kind). `needs` are
    the keys of steps without which this one would change nothing.
    """

    key: str
    kind: StepKind
    stage: int
    database: str | None
    object: str
    """What it is done to, in words that name it alone: `app.public.messages`, `slot "cdc"`."""
    reason: str
    statements: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of the session it is done in."""
    needs: tuple[str, ...] = ()
    database_oid: int | None = None
    """Of a step that is about a database as a whole."""
    relation_oid: int | None = None
    pid: int | None = None
    application: str | None = None
    """Of a standby: it is ended again whenever it comes back with rows as old as `xid_age_max`. None:
    another standby has its name and address, and it could not be told from that one."""
    client: str | None = None
    """The address of that standby; None: a unix socket."""
    xid_age: int = 0
    mxid_age: int = 0
    xid_age_max: int = 0
    mxid_age_max: int = 0
    """The ages that it is to bring the relation or database below."""
    bytes: int = 0
    """To be read and, at most, written again."""
    wal_bytes: int = 0
    seconds: float = 0.0

    @property
    def destructive(self) -> bool:
        """Whether somebody has to agree to it by name."""
        return bool(self.choices)
