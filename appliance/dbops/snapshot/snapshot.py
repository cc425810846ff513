"""What is known of a PostgreSQL cluster at one moment: values that `inspect` reads and plans are made of.

Ages are in IDs, counted back from the next one to be given out; `None` where there is no such ID. What
could not be read is named in `Snapshot.missing`, never silently empty. Never: reads a server or decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from appliance.dbops.limits import (
    MEMBERS_MAX,
    STOP_AGE,
    Stage,
    stage_of_age,
    stage_of_members,
)
from appliance.dbops.snapshot.missing import Missing

CATALOG_OIDS_END = 12_000
"""Relations below it are system catalogs and their TOAST (`IsCatalogRelationOid`): a logical slot's
`catalog_xmin` holds them back and nothing else."""


class RelationKind(StrEnum):
    """`pg_class.relkind` of the relations that hold rows with transaction IDs."""

    TABLE = "r"
    MATERIALIZED_VIEW = "m"
    TOAST = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table, materialized view or TOAST table. Estimates are of its last VACUUM or ANALYZE.

    `pages` is its size now where that could be read, else the estimate. A shared catalog has a row, and
    ages of its own, in each database.
    """

    oid: int
    schema: str
    name: str
    kind: RelationKind
    toast_owner: int | None
    """The oid of the table that a TOAST table belongs to."""
    temporary: bool
    shared: bool
    user_catalog: bool
    """A user's table that logical decoding reads (`user_catalog_table`): ages like a catalog."""
    xid_age: int
    mxid_age: int
    pages: int
    pages_all_visible: int
    pages_all_frozen: int | None
    """None before PostgreSQL 18, which began to keep it in `pg_class`."""
    rows_live: int
    rows_dead: int
    last_autovacuum: datetime | None
    nameable: bool = True
    """Whether a statement can name it; else only autovacuum gets there, which goes by oids."""

    @property
    def catalog(self) -> bool:
        """Whether it is a system catalog or one's TOAST."""
        return self.oid < CATALOG_OIDS_END

    @property
    def pages_not_frozen(self) -> int:
        """Pages that a VACUUM has to read to freeze it all; all of them where nothing better is known."""
        return max(0, self.pages - (self.pages_all_frozen or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TempNamespace:
    """A schema `pg_temp_N`, and the sessions that may own it.

    `owners` holds one pid where the owner is known, none where there is none left (what is in it is
    orphaned), and several where it is one of them and PostgreSQL (before 16) does not tell which.
    """

    name: str
    owners: tuple[int, ...]

    @property
    def orphaned(self) -> bool:
        """Whether nobody is left that could drop what is in it."""
        return not self.owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One row of `pg_database`, and what a connection to it saw.

    `relations` and `temp_namespaces` are None where it could not be asked: a reason is in
    `Snapshot.missing`, unless it takes no connections (template0).
    """

    oid: int
    name: str
    connectable: bool
    template: bool
    current: bool
    """Whether the cluster-wide parts of the snapshot were read through it."""
    dropping: bool
    """Whether its DROP DATABASE was interrupted: nobody can connect, and its age counts no more."""
    xid_age: int
    mxid_age: int
    relations: tuple[Relation, ...] | None
    temp_namespaces: tuple[TempNamespace, ...] | None
    nameable: bool = True
    """Whether a login can name it: its name is UTF-8."""
    extensions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The schemas of `amcheck` and `pg_surgery`, where it has them."""

    @property
    def closed_because(self) -> str:
        """Why nobody can look inside."""
        if self.nameable:
            return "it takes no connections"
        return "its name is no UTF-8, with which this tool cannot connect"

    @property
    def xids_left(self) -> int:
        """XIDs until this database alone stops the cluster; negative beyond it."""
        return STOP_AGE - self.xid_age

    @property
    def mxids_left(self) -> int:
        """MXIDs until this database alone stops the cluster; negative beyond it."""
        return STOP_AGE - self.mxid_age


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeMin:
    """The ages from which on something counts as old, in XIDs or in MXIDs."""

    xid: int
    mxid: int

    def reached(self, item: Relation | Database) -> bool:
        """Whether one of the two is."""
        return item.xid_age >= self.xid or item.mxid_age >= self.mxid


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A server process that is connected to a database, sends WAL, or holds rows back."""

    pid: int
    backend: str
    """`client backend`, `autovacuum worker`, `walsender`, `parallel worker` and so on."""
    database: str | None
    user: str | None
    application: str
    client: str | None
    """The address it came from; None on a unix socket."""
    state: str | None
    """`active`, `idle`, `idle in transaction`, `idle in transaction (aborted)` and so on."""
    xmin_age: int | None
    xid_age: int | None
    transaction_s: float | None
    state_s: float | None
    query: str
    """Its newest statement, cut to 200 characters."""
    own: bool
    """Whether it is this tool's."""
    vacuuming: bool
    """A plain VACUUM's own snapshot holds nothing back (`PROC_IN_VACUUM`)."""

    @property
    def horizon_age(self) -> int | None:
        """How far back it keeps rows from being frozen."""
        ages = [age for age in (self.xmin_age, self.xid_age) if age is not None]
        return None if self.vacuuming or not ages else max(ages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A transaction between PREPARE and COMMIT or ROLLBACK PREPARED."""

    gid: str
    database: str
    owner: str
    xid_age: int
    prepared_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot; `database` and `plugin` are a logical one's."""

    name: str
    logical: bool
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    xmin_age: int | None
    catalog_xmin_age: int | None
    wal_status: str | None

    @property
    def lost(self) -> bool:
        """Whether it was invalidated: it then holds nothing back any more."""
        return self.wal_status == "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A connected receiver of WAL. `xmin_age` is its feedback where no slot keeps it instead."""

    pid: int
    application: str
    client: str | None
    state: str | None
    sync_state: str | None
    """`sync` or `quorum` of one that commits wait for; None where it may not be seen."""
    slot: str | None
    xmin_age: int | None


VACUUM_LOCK_MODE = "ShareUpdateExclusiveLock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock on a relation that VACUUM would have to wait for, or waits behind (`granted` false).

    Held by the session `pid`, or by the prepared transaction `gid`.
    """

    database_oid: int
    """0 for a shared catalog."""
    relation_oid: int
    mode: str
    granted: bool
    pid: int | None
    gid: str | None

    @property
    def delays_vacuum(self) -> bool:
        """Whether it is held, or asked for by somebody whom a VACUUM that comes later waits behind.

        Who waits for VACUUM's own mode is a VACUUM or ANALYZE too, often this tool's.
        """
        return self.granted or self.mode != VACUUM_LOCK_MODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum:
    """A VACUUM that runs."""

    pid: int
    database: str
    relation_oid: int
    automatic: bool
    to_prevent_wraparound: bool
    """Such an autovacuum does not give way to a lock that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpace:
    """How much of the space for multixact members is in use, to a file's precision, rounded up."""

    used: int
    next_offset: int
    """The next member's position at the newest checkpoint."""

    @property
    def left(self) -> int:
        """Members until new multixacts are refused."""
        return max(0, MEMBERS_MAX - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCount:
    """The ages of the oldest IDs that the server counts from, as of its newest checkpoint.

    It refuses by its own count, in memory, which follows `pg_database` when a VACUUM tells it to.
    """

    xid_age: int
    mxid_age: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cluster at one moment, read without a transaction ID."""

    taken_at: datetime
    """The server's clock."""
    system_id: str
    """Tells one cluster from another; a copy and its standbys share it."""
    version: int
    """`server_version_num`: 180006 is 18.6."""
    version_text: str
    in_recovery: bool
    superuser: bool
    """Whether the reader was one: what others may not see is in `missing`."""
    block_size: int
    segment_bytes: int
    """Of a relation's files but the last."""
    has_lz4: bool
    """Whether a superuser's session can compress the WAL that it writes with it."""
    server_started_s: float
    """When the server was started, in seconds since 1970 by its own clock."""
    next_xid: int
    """64 bits: it only grows."""
    next_mxid: int
    wal_position: int
    """Bytes of WAL ever written (or, on a standby, replayed)."""
    members: MemberSpace | None
    counted: ServerCount | None
    """None where the control file may not be read."""
    databases: tuple[Database, ...]
    sessions: tuple[Session, ...]
    prepared: tuple[PreparedTransaction, ...]
    slots: tuple[Slot, ...]
    standbys: tuple[Standby, ...]
    locks: tuple[Lock, ...]
    vacuums: tuple[Vacuum, ...]
    autovacuum_launcher: bool | None
    """Whether the process that starts autovacuum workers is there; None where it may not be seen."""
    settings: Mapping[str, str] = field(repr=False)
    """`pg_settings.setting` of what this work depends on; a setting that this version lacks is absent."""
    missing: tuple[Missing, ...]

    @property
    def major(self) -> int:
        """18 of 18.6."""
        return self.version // 10_000

    @property
    def xid_age(self) -> int:
        """The oldest database's: the one that counts."""
        return max(database.xid_age for database in self.databases if not database.dropping)

    @property
    def mxid_age(self) -> int:
        """The oldest database's, in multixact IDs."""
        return max(database.mxid_age for database in self.databases if not database.dropping)

    @property
    def xids_left(self) -> int:
        """XIDs until writes are refused; zero or negative when they are."""
        return STOP_AGE - self.xid_age

    @property
    def mxids_left(self) -> int:
        """MXIDs until commands that need a new one are refused; zero or negative when they are."""
        return STOP_AGE - self.mxid_age

    @property
    def stopped(self) -> bool:
        """Whether commands that need an XID are refused."""
        return self.xids_left <= 0

    def stage_of_xid_age(self, age: int) -> Stage:
        """The stage of an XID age under this cluster's settings."""
        return stage_of_age(
            age,
            freeze_age_max=self.setting_int("autovacuum_freeze_max_age"),
            failsafe_age=self.setting_int("vacuum_failsafe_age"),
        )

    def stage_of_mxid_age(self, age: int) -> Stage:
        """The stage of an MXID age under this cluster's settings."""
        return stage_of_age(
            age,
            freeze_age_max=self.setting_int("autovacuum_multixact_freeze_max_age"),
            failsafe_age=self.setting_int("vacuum_multixact_failsafe_age"),
        )

    @property
    def stage(self) -> Stage:
        """The worst of XIDs, MXIDs and member space."""
        members = Stage.OK if self.members is None else stage_of_members(self.members.used)
        return max(
            self.stage_of_xid_age(self.xid_age), self.stage_of_mxid_age(self.mxid_age), members
        )

    def setting_int(self, name: str) -> int:
        """A setting that every version has, as the whole number it is."""
        return int(self.settings[name])

    def database(self, name: str) -> Database | None:
        """The database of a name."""
        return next((database for database in self.databases if database.name == name), None)

    def relation(self, database: str | None, oid: int | None) -> Relation | None:
        """The relation of an oid in the database of a name."""
        found = None if database is None else self.database(database)
        relations = () if found is None else found.relations or ()
        return next((relation for relation in relations if relation.oid == oid), None)
