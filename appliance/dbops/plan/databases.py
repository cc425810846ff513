"""What ends a database once its relations are young, and what shows that writes are back. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from appliance.dbops.blockers.refusals import is_multixact_limit_stale, smallest_database
from appliance.dbops.limits import ID_SPACE
from appliance.dbops.plan.step import Step, StepKind
from appliance.dbops.plan.vacuum import AgeLimits
from appliance.dbops.remedies import count_database_age, freeze_database
from appliance.dbops.snapshot.snapshot import Database, Snapshot

AUTOVACUUM_SETTINGS = MappingProxyType(
    {"autovacuum": "on", "track_counts": "on", "autovacuum_naptime": "1s"}
)
"""While autovacuum is let in; what was set before comes back. A new nap wakes the launcher at once."""


def refresh_step(
    snapshot: Snapshot, database: Database, limits: AgeLimits, stage: int, *, stale: bool
) -> Step:
    """Compute the database's age from its relations' (`datfrozenxid`, `datminmxid`)."""
    reason = "its relations are young, and its own age has not followed"
    return Step(
        key=f"refresh:{stage}:{database.name}",
        kind=StepKind.REFRESH,
        stage=stage,
        database=database.name,
        database_oid=database.oid,
        object=f"database {database.name}",
        reason=reason if stale else "its age follows from its relations'",
        statements=(count_database_age(snapshot.major),),
        xid_age=database.xid_age,
        mxid_age=database.mxid_age,
        xid_age_max=limits.xid[stage - 1],
        mxid_age_max=limits.mxid[stage - 1],
    )


def recount_step(snapshot: Snapshot) -> Step:
    """Have the server count anew from `pg_database` where it refuses IDs: its own count is in memory, and
    is left as it was when a VACUUM ends between writing down an age and telling it.
    """
    database = next((one for one in snapshot.databases if one.current), snapshot.databases[0])
    limits = AgeLimits(
        xid=(ID_SPACE, ID_SPACE),
        mxid=(ID_SPACE, ID_SPACE),
        members_short=False,
        members_over_half=False,
    )
    statement = count_database_age(snapshot.major)
    if is_multixact_limit_stale(snapshot):
        database, statement = smallest_database(snapshot) or database, freeze_database()
    plain = refresh_step(snapshot, database, limits, 1, stale=True)
    return replace(
        plain,
        key="recount",
        statements=(statement,),
        reason="every database is young, and the server refuses IDs all the same: it is to count anew",
    )


def unread_step(snapshot: Snapshot, database: Database, stage: int) -> Step:
    """An old database into which this tool could not look: what is old in it is not known."""
    reasons = [one.reason for one in snapshot.missing if one.database == database.name]
    why = f" ({reasons[0]})" if reasons else ""
    return Step(
        key=f"unread:{stage}:{database.name}",
        kind=StepKind.ASK,
        stage=stage,
        database=database.name,
        database_oid=database.oid,
        object=f"database {database.name}",
        reason=f"it is {database.xid_age:,} XIDs and {database.mxid_age:,} MXIDs old, and its relations "
        f"could not be read{why}: see to it that this user can, and run this again",
        xid_age=database.xid_age,
        mxid_age=database.mxid_age,
    )


def autovacuum_step(
    snapshot: Snapshot, database: Database, limits: AgeLimits, stage: int
) -> Step | None:
    """Have autovacuum freeze what no session of this tool can; None while it would not.

    In the stop this is the only way: to let connections in (ALTER DATABASE) takes an XID. It works on 14
    to 18, needs no restart, and leaves the catalogs as they are.
    """
    why = database.closed_because
    if database.connectable:
        why = "a table in it has a name that is no UTF-8, which no statement of this tool can have; it"
    of_xids = database.xid_age > snapshot.setting_int("autovacuum_freeze_max_age")
    of_mxids = database.mxid_age > snapshot.setting_int("autovacuum_multixact_freeze_max_age")
    # Beyond half of the members, autovacuum lowers its own limit as far as it takes.
    if not (of_xids or of_mxids or limits.members_over_half):
        return None
    return Step(
        key=f"autovacuum:{stage}:{database.name}",
        kind=StepKind.AUTOVACUUM,
        stage=stage,
        database=database.name,
        database_oid=database.oid,
        object=f"database {database.name}",
        reason=f"{why} and is {database.xid_age:,} XIDs old: autovacuum is let in at once, and its "
        "settings come back afterwards",
        settings=AUTOVACUUM_SETTINGS,
        xid_age=database.xid_age,
        mxid_age=database.mxid_age,
        xid_age_max=limits.xid[stage - 1],
        mxid_age_max=limits.mxid[stage - 1],
        seconds=2.0,
    )


TAKE_XID = "SELECT pg_current_xact_id()"

TAKE_MULTIXACT = (
    "BEGIN",
    "CREATE TEMPORARY TABLE appliance_probe (n int) ON COMMIT DROP",
    "INSERT INTO appliance_probe VALUES (1)",
    "SAVEPOINT inserted",
    "SELECT n FROM appliance_probe FOR KEY SHARE",
    "SAVEPOINT locked",
    "SELECT n FROM appliance_probe FOR UPDATE",
    "ROLLBACK",
)
"""A row locked by a transaction and, more strongly, by a part of it has two lockers: a multixact."""


def probe_step() -> Step:
    """Whether writes are back, and with them the row locks of foreign keys."""
    return Step(
        key="probe",
        kind=StepKind.PROBE,
        stage=1,
        database=None,
        object="a transaction ID and a multixact",
        reason="one of each is taken, to see that the server gives them out again",
        statements=(TAKE_XID, *TAKE_MULTIXACT),
    )
