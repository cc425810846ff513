"""Old temporary tables, which VACUUM passes over: with their owner, or without one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from appliance.dbops.plan.holds import session_name
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Choice, Consent, Step, StepKind
from appliance.dbops.plan.vacuum import AgeLimits
from appliance.dbops.quoting import single_user_command
from appliance.dbops.remedies import drop_temp_table, end_session_seen
from appliance.dbops.snapshot.snapshot import Database, Relation, Session, Snapshot


def temp_steps(snapshot: Snapshot, limits: AgeLimits, policy: Policy) -> Iterator[Step]:
    """A step for each owner, and for each table without one."""
    in_stop = snapshot.xids_left <= 0
    sessions = {session.pid: session for session in snapshot.sessions}
    for database in snapshot.databases:
        for schema, owners, tables in _owned_tables(database):
            old = [table for table in tables if limits.stage_of(table.xid_age, table.mxid_age)]
            if not old:
                continue
            oldest = max(old, key=lambda table: max(table.xid_age, table.mxid_age))
            stage = limits.stage_of(oldest.xid_age, oldest.mxid_age)
            assert stage is not None
            if not owners:
                for table in old:
                    yield _orphan_step(database, table, stage, policy, offline=in_stop)
                continue
            names = ", ".join(f"{schema}.{table.name}" for table in old)
            for owner in (sessions[pid] for pid in owners if pid in sessions):
                yield _live_step(
                    owner,
                    names,
                    oldest.xid_age,
                    stage=stage,
                    # Which of several it is, PostgreSQL before 16 does not tell.
                    offered=len(owners) == 1 and (policy.single_user or not in_stop),
                    taken_at=snapshot.taken_at,
                )


def _by_hand(drop: str, database: str) -> str:
    command = single_user_command(drop, folder="FOLDER", database=database)
    return "" if command is None else f", or by hand: {command}"


def _orphan_step(
    database: Database, table: Relation, stage: int, policy: Policy, *, offline: bool
) -> Step:
    drop = drop_temp_table(table.schema, table.name)
    asked = not offline or policy.single_user
    reason = f"its owner is gone, it is {table.xid_age:,} XIDs old, and VACUUM passes it over"
    if offline:
        reason += (
            "; dropping it takes an XID, which in the stop only single-user mode gives"
            if asked
            else "; in the stop only single-user mode can drop it: stop the server and run this again "
            f"with --single-user{_by_hand(drop, database.name)}"
        )
    step = Step(
        key=f"temp:{database.name}:{table.oid}",
        kind=StepKind.DROP_TEMP_OFFLINE if offline else StepKind.DROP_TEMP,
        stage=stage,
        database=database.name,
        object=f"orphaned temporary table {database.name}.{table.schema}.{table.name}",
        reason=reason,
        relation_oid=table.oid,
        xid_age=table.xid_age,
        mxid_age=table.mxid_age,
    )
    if not asked:
        return replace(step, kind=StepKind.ASK)
    consent = Consent.SINGLE_USER if offline else Consent.TEMP_TABLE
    loses = "the rows of a session that has ended, which nobody can read any more"
    return replace(
        step,
        choices=(
            Choice(
                consent=consent,
                statements=(drop,),
                loses=f"{loses}; the server is stopped and started" if offline else loses,
            ),
        ),
    )


def _live_step(
    session: Session, names: str, age: int, *, stage: int, offered: bool, taken_at: datetime
) -> Step:
    """A temporary table that only its living owner can freeze, or that goes with its owner.

    In the stop an owner that is ended cannot drop it (that takes an XID) and leaves an orphan, so this is
    offered only where the orphan may then be dropped in single-user mode (measured on 15 and 18).
    """
    reason = f"its temporary tables ({names}) are {age:,} XIDs old, and nobody else can freeze them"
    if not offered:
        return Step(
            key=f"temp-owner:{session.pid}",
            kind=StepKind.ASK,
            stage=stage,
            database=session.database,
            object=session_name(session),
            reason=f"{reason}. Have it run VACUUM itself. Ending it does not help: in the stop it "
            "cannot drop them any more, and only single-user mode could (--single-user)",
            pid=session.pid,
        )
    return Step(
        key=f"temp-owner:{session.pid}",
        kind=StepKind.END_OWNER,
        stage=stage,
        database=None,
        object=session_name(session),
        reason=reason,
        choices=(
            Choice(
                consent=Consent.SESSION,
                statements=(end_session_seen(session.pid, taken_at, idle_too=True),),
                loses="its temporary tables and what it has not committed",
            ),
        ),
        pid=session.pid,
    )


def _owned_tables(
    database: Database,
) -> Iterator[tuple[str, tuple[int, ...], tuple[Relation, ...]]]:
    """Each schema of temporary tables in a database: its name, who may own it, and its tables, whose age
    is their TOAST's where that is older."""
    relations = database.relations or ()
    toast = {relation.toast_owner: relation for relation in relations if relation.temporary}
    for namespace in database.temp_namespaces or ():
        tables = tuple(
            replace(
                table,
                xid_age=max(table.xid_age, toast.get(table.oid, table).xid_age),
                mxid_age=max(table.mxid_age, toast.get(table.oid, table).mxid_age),
            )
            for table in relations
            if table.temporary and table.schema == namespace.name
        )
        if tables:
            yield namespace.name, namespace.owners, tables
