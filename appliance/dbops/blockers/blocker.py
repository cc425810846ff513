"""A blocker: one thing that keeps a cluster's transaction IDs from being freed, and what to do about it.

Values only. Never: decides what is one (`blockers.py`) or does anything about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from appliance.dbops.limits import Stage
from appliance.dbops.snapshot.snapshot import Database, Relation


class BlockerKind(StrEnum):
    """What it is. The order is that in which equally grave ones are told: causes before their effects."""

    IDLE_IN_TRANSACTION = "idle_in_transaction"
    LONG_TRANSACTION = "long_transaction"
    PREPARED_TRANSACTION = "prepared_transaction"
    STANDBY_FEEDBACK = "standby_feedback"
    PHYSICAL_SLOT = "physical_slot"
    LOGICAL_SLOT = "logical_slot"
    ORPHANED_TEMP_TABLE = "orphaned_temp_table"
    LIVE_TEMP_TABLE = "live_temp_table"
    MISSING_FILE = "missing_file"
    DAMAGED_PAGE = "damaged_page"
    DAMAGED_INDEX = "damaged_index"
    LOCK = "lock"
    SYNCHRONOUS_STANDBY = "synchronous_standby"
    STALE_LIMIT = "stale_limit"
    AUTOVACUUM_OFF = "autovacuum_off"
    AUTOVACUUM_STARVED = "autovacuum_starved"
    BURN_RATE = "burn_rate"
    MEMBER_SPACE = "member_space"
    STALE_DATFROZENXID = "stale_datfrozenxid"
    OLD_DATABASE = "old_database"
    UNCONNECTABLE_DATABASE = "unconnectable_database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The relations whose rows it keeps from being frozen.

    Whatever holds back any of them holds back `datfrozenxid` of every database in its reach, and the
    shared catalogs, of which each database has its own ages, are in the reach of nearly everything.
    """

    database: str | None = None
    """None: of every database."""
    shared: bool = False
    """The shared catalogs of every database as well."""
    catalogs_only: bool = False
    relation_oid: int | None = None
    """This relation alone."""

    def holds(self, database: Database, relation: Relation) -> bool:
        """Whether a VACUUM of `relation` in `database` cannot get past it."""
        if self.relation_oid is not None:
            return database.name == self.database and relation.oid == self.relation_oid
        if relation.temporary:
            return False  # Only its owner's own transactions count for it.
        if self.catalogs_only:
            return relation.catalog or relation.user_catalog
        if self.database is None or database.name == self.database:
            return True
        return self.shared and relation.shared

    def __str__(self) -> str:
        if self.relation_oid is not None:
            return f"one relation of database {self.database}"
        if self.catalogs_only:
            return "the system catalogs of every database"
        if self.database is None:
            return "every table of every database"
        shared = ", and the shared catalogs of every database" if self.shared else ""
        return f"every table of database {self.database}{shared}"


class ActionForm(StrEnum):
    """Where the text of an action is to be entered."""

    SQL = "sql"
    SHELL = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One way to remove a blocker: statements or a command, exactly as they are to be entered."""

    form: ActionForm
    text: str
    database: str | None
    """Where SQL is to be run; None: in any database."""
    consequence: str
    """What else it does, and when it is the wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One blocker. The fields below `actions` are the plain keys of its kind, None where it has none."""

    kind: BlockerKind
    id: str
    """Its name for a person: `pid 4711`, `slot old_cdc`, `app: "public"."turns"`."""
    age: int | None
    """In XIDs: what it reaches cannot become younger than this."""
    stage: Stage
    """How far a cluster of that age has come."""
    reach: Reach
    detail: str
    """Whose it is, since when, what it does."""
    since_s: float | None
    actions: tuple[Action, ...]
    pid: int | None = None
    gid: str | None = None
    slot: str | None = None
    database: str | None = None
    relation_oid: int | None = None
    mxid_age: int | None = None
    automatic: bool = False
    """Whether it is a VACUUM or ANALYZE at work: it is to be waited for, not to be ended."""

    @property
    def scope(self) -> str:
        """Its reach in words."""
        return str(self.reach)
