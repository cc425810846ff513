"""What `appliance db status` and `diagnose` found, as JSON. Pure; owns the names that programs read."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nlargest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appliance.cli.journal_depth import JournalDepth
    from appliance.dbops.blockers.blocker import Blocker
    from appliance.dbops.monitoring.status import Status
    from appliance.dbops.snapshot.rates import Rate
    from appliance.dbops.snapshot.snapshot import Database, Relation, Snapshot

TABLES_MAX = 10
ID_SPACE_HALF = 2**31


def status_json(status: Status, journal: JournalDepth | None, notes: list[str]) -> dict[str, Any]:
    """One object; ages and what is left are in IDs, times in seconds."""
    from appliance.dbops.monitoring.status import stage_of_member_space

    snapshot = status.snapshot
    member_stage = stage_of_member_space(snapshot)
    return {
        "severity": status.severity.name.lower(),
        "stage": status.stage.name.lower(),
        **head_json(snapshot),
        "xids": {
            "left": snapshot.xids_left,
            "age": snapshot.xid_age,
            "stage": snapshot.stage_of_xid_age(snapshot.xid_age).name.lower(),
            "days_left": status.xid_days_left,
        },
        "mxids": {
            "left": snapshot.mxids_left,
            "age": snapshot.mxid_age,
            "stage": snapshot.stage_of_mxid_age(snapshot.mxid_age).name.lower(),
            "days_left": status.mxid_days_left,
        },
        "members": None
        if snapshot.members is None or member_stage is None
        else {
            "left": snapshot.members.left,
            "used": snapshot.members.used,
            "stage": member_stage.name.lower(),
            "days_left": status.member_days_left,
        },
        "rate": _rate_json(status.rate),
        "daily_rate": _rate_json(status.daily_rate),
        "databases": [_database_json(snapshot, item) for item in snapshot.databases],
        "autovacuum": asdict(status.autovacuum),
        "journal": None if journal is None else asdict(journal),
        "blockers": [blocker_json(item) for item in status.blockers],
        "missing": [asdict(item) for item in snapshot.missing],
        "notes": notes,
    }


def diagnosis_json(
    snapshot: Snapshot, severity: str, found: tuple[Blocker, ...], notes: list[str]
) -> dict[str, Any]:
    """One object: the blockers, who holds each database, the oldest tables, and the levels of ages."""
    from appliance.dbops.blockers.horizon import horizons

    return {
        "severity": severity,
        "stage": snapshot.stage.name.lower(),
        **head_json(snapshot),
        "levels": _levels(snapshot),
        "blockers": [blocker_json(item) for item in found],
        "horizons": [
            {
                "database": item.database,
                "data": None if item.data is None else _holder_json(item.data),
                "catalogs": None if item.catalogs is None else _holder_json(item.catalogs),
            }
            for item in horizons(snapshot)
        ],
        "databases": [_database_json(snapshot, item) for item in snapshot.databases],
        "tables": _tables_json(snapshot),
        "missing": [asdict(item) for item in snapshot.missing],
        "notes": notes,
    }


def head_json(snapshot: Snapshot) -> dict[str, Any]:
    """Which cluster it was, and when."""
    return {
        "taken_at": snapshot.taken_at.isoformat(),
        "version": snapshot.version_text,
        "standby": snapshot.in_recovery,
    }


def blocker_json(blocker: Blocker) -> dict[str, Any]:
    """A blocker with its plain keys and its actions."""
    return {
        "kind": blocker.kind.value,
        "id": blocker.id,
        "stage": blocker.stage.name.lower(),
        "age": blocker.age,
        "mxid_age": blocker.mxid_age,
        "scope": blocker.scope,
        "detail": blocker.detail,
        "since_s": blocker.since_s,
        "pid": blocker.pid,
        "gid": blocker.gid,
        "slot": blocker.slot,
        "database": blocker.database,
        "relation_oid": blocker.relation_oid,
        "automatic": blocker.automatic,
        "actions": [
            {
                "form": action.form.value,
                "text": action.text,
                "database": action.database,
                "consequence": action.consequence,
            }
            for action in blocker.actions
        ],
    }


def _holder_json(blocker: Blocker) -> dict[str, Any]:
    return {"kind": blocker.kind.value, "id": blocker.id, "age": blocker.age}


def _rate_json(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else asdict(rate)


def _database_json(snapshot: Snapshot, database: Database) -> dict[str, Any]:
    from appliance.dbops.monitoring.status import stage_of_database

    return {
        "name": database.name,
        "connectable": database.connectable,
        "looked_into": database.relations is not None,
        "xid_age": database.xid_age,
        "xid_age_share": database.xid_age / ID_SPACE_HALF,
        "xids_left": database.xids_left,
        "mxid_age": database.mxid_age,
        "mxid_age_share": database.mxid_age / ID_SPACE_HALF,
        "mxids_left": database.mxids_left,
        "stage": stage_of_database(snapshot, database).name.lower(),
    }


def _levels(snapshot: Snapshot) -> dict[str, Any]:
    """From which ages on a stage begins, so that a reader can judge the shares."""
    from appliance.dbops.blockers.blockers import due_age
    from appliance.dbops.limits import STOP_AGE, WARN_AGE

    due = due_age(snapshot)
    return {
        "xids": {
            "lagging": due.xid,
            "failsafe": snapshot.setting_int("vacuum_failsafe_age"),
            "warn": WARN_AGE,
            "stopped": STOP_AGE,
        },
        "mxids": {
            "lagging": due.mxid,
            "failsafe": snapshot.setting_int("vacuum_multixact_failsafe_age"),
            "warn": WARN_AGE,
            "stopped": STOP_AGE,
        },
    }


def _tables_json(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The oldest tables of all databases, and those with the most dead rows."""
    found = [
        (database, relation)
        for database in snapshot.databases
        for relation in database.relations or ()
        if not relation.catalog
    ]
    oldest = nlargest(TABLES_MAX, found, key=lambda item: item[1].xid_age)
    deadest = nlargest(TABLES_MAX, found, key=lambda item: item[1].rows_dead)
    both = {
        (database.oid, relation.oid): (database, relation)
        for database, relation in oldest + deadest
    }
    return [_table_json(database, relation) for database, relation in both.values()]


def _table_json(database: Database, relation: Relation) -> dict[str, Any]:
    rows = relation.rows_live + relation.rows_dead
    at = relation.last_autovacuum
    return {
        "database": database.name,
        "schema": relation.schema,
        "name": relation.name,
        "xid_age": relation.xid_age,
        "mxid_age": relation.mxid_age,
        "pages": relation.pages,
        "dead_share": relation.rows_dead / rows if rows else 0.0,
        "last_autovacuum": None if at is None else at.isoformat(),
    }
