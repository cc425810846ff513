"""Steps for what a run met on its way: damaged pages and indexes, and what freezing left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from appliance.dbops.plan.history import History, RelationKey
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Choice, Consent, Step, StepKind
from appliance.dbops.plan.vacuum import AgeLimits, order, repair_step, vacuum_step
from appliance.dbops.quoting import identifier, literal
from appliance.dbops.remedies import check_rows
from appliance.dbops.snapshot.snapshot import Database, Relation, RelationKind, Snapshot


def damage_steps(
    snapshot: Snapshot, limits: AgeLimits, policy: Policy, past: History
) -> Iterator[tuple[Database, Relation, Step]]:
    """For a relation that VACUUM cannot get through: the one way on that does not restore it."""
    for database in snapshot.databases:
        for relation in database.relations or ():
            place = RelationKey(database=database.name, oid=relation.oid)
            if place not in past.damaged | past.bad_rows | past.without_file:
                continue
            plain = vacuum_step(
                snapshot,
                database.name,
                relation,
                # What is young was met by what comes after freezing.
                stage=limits.stage_of(relation.xid_age, relation.mxid_age) or 2,
                limits=limits,
                policy=policy,
                rate_bytes_per_s=policy.rate_bytes_per_s,
            )
            if place in past.without_file:
                yield database, relation, _missing_file_step(plain)
                continue
            if place in past.bad_rows:
                yield database, relation, _bad_rows_step(plain, database, relation)
            if place in past.damaged:
                yield database, relation, _zero_step(plain, relation)


def _missing_file_step(plain: Step) -> Step:
    return replace(
        plain,
        key=f"file:{plain.database}:{plain.relation_oid}",
        kind=StepKind.ASK,
        reason="a file of it is missing, so that nothing in it can be frozen. Put the file back from a "
        "copy of the data folder (of the same moment, the server being stopped), or restore the database",
        statements=(),
    )


def _zero_step(plain: Step, relation: Relation) -> Step:
    """Of stage 1, whatever its age: until its indexes are built again nothing may be written to it."""
    loses = (
        "every row on the damaged pages: they are copied to the state folder, and empty ones are written "
        "in their place"
    )
    if relation.kind is RelationKind.TOAST:
        loses += "; a row of its table whose long value lay there cannot be read any more (missing chunk)"
    return replace(
        plain,
        key=f"zero:{plain.database}:{plain.relation_oid}",
        kind=StepKind.ZERO_PAGES,
        stage=1,
        reason="a page of it cannot be read. Restore the page from a backup, or give it up: its indexes "
        "are built again then",
        statements=(),
        choices=(
            Choice(consent=Consent.ZERO_DAMAGED_PAGES, statements=plain.statements, loses=loses),
        ),
    )


def _bad_rows_step(plain: Step, database: Database, relation: Relation) -> Step:
    """Rows with an ID older than the table itself: VACUUM refuses them, amcheck finds them, and
    heap_force_freeze (pg_surgery) makes them visible for good; in the stop all of that works."""
    missing = [one for one in ("amcheck", "pg_surgery") if one not in database.extensions]
    if missing:
        return replace(
            plain,
            key=f"rows:{plain.database}:{relation.oid}",
            kind=StepKind.ASK,
            reason="a row in it is older than the table can be, and VACUUM refuses it; what could freeze "
            f"it is not there: CREATE EXTENSION {', '.join(missing)}, once there are transaction IDs",
            statements=(),
        )
    # By their schemas: an owner's function of the same name is not called as a superuser.
    freeze_rows = identifier(database.extensions["pg_surgery"], "heap_force_freeze")
    name = literal(identifier(relation.schema, relation.name))
    freeze = (
        f"SELECT {freeze_rows}({name}::regclass, "
        f"array_agg(format('(%s,%s)', blkno, offnum)::tid)) "
        f"FROM {check_rows(database.extensions['amcheck'], name)} "
        "WHERE msg LIKE 'xmin % precedes relation freeze threshold %'"
    )
    return replace(
        plain,
        key=f"rows:{plain.database}:{relation.oid}",
        kind=StepKind.FREEZE_ROWS,
        reason="a row in it is older than the table can be, and VACUUM refuses it. verify_heapam "
        "(extension amcheck) lists such rows, heap_force_freeze (pg_surgery) freezes them",
        statements=(),
        choices=(
            Choice(
                consent=Consent.FREEZE_BAD_ROWS,
                statements=(freeze, *plain.statements),
                loses="nothing; but such a row is visible from then on, whatever became of the "
                "transaction that wrote it",
            ),
        ),
    )


def rebuild_steps(snapshot: Snapshot, past: History) -> Iterator[Step]:
    """Building the indexes anew of what was given up, as soon as there are IDs for it.

    An entry of a row that is gone outlives every VACUUM, which takes out the dead rows that it sees. The
    next row at that place is then found by the old one's key, which a b-tree does not compare again.
    """
    if snapshot.stopped:
        return
    for database in snapshot.databases:
        for relation in database.relations or ():
            if RelationKey(database=database.name, oid=relation.oid) in past.given_up:
                reason = (
                    "pages of it were given up, and its indexes still lead to the rows that were there: "
                    "another one in their place would be taken for them"
                )
                yield _reindex_step(database.name, relation, past, stage=1, reason=reason)


def repair_steps(
    snapshot: Snapshot,
    policy: Policy,
    past: History,
    rate: float,
    planned: Sequence[tuple[Database, Relation]],
) -> Iterator[Step]:
    """For every relation frozen before, and every one that this plan freezes."""
    now = {RelationKey(database=database.name, oid=relation.oid) for database, relation in planned}
    bad_indexes = past.bad_indexes - past.given_up
    now |= bad_indexes
    for database in snapshot.databases:
        for relation in sorted(database.relations or (), key=order):
            place = RelationKey(database=database.name, oid=relation.oid)
            if place in past.bad_values:
                yield _bad_value_step(database.name, relation)
            if place not in past.frozen and place not in now:
                continue
            if place in bad_indexes:
                reason = (
                    "an index of it is damaged; its table is not, and the index can be built again"
                )
                yield _reindex_step(database.name, relation, past, stage=3, reason=reason)
            yield repair_step(
                snapshot,
                database.name,
                relation,
                policy=policy,
                rate_bytes_per_s=rate,
                analyze=place not in past.bad_values,
            )


def _bad_value_step(database: str, relation: Relation) -> Step:
    return Step(
        key=f"values:{database}:{relation.oid}",
        kind=StepKind.ASK,
        stage=3,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason="a long value in it cannot be read, whatever reads that row fails, and no ANALYZE gets "
        "through. Find the row by reading the values one by one (missing chunk, compressed data is "
        "corrupt), then set the value anew from a backup, set it NULL, or delete the row",
        relation_oid=relation.oid,
    )


def _reindex_step(
    database: str, relation: Relation, past: History, *, stage: int, reason: str
) -> Step:
    locked = past.under_lock.get(RelationKey(database=database, oid=relation.oid))
    if locked is not None:
        return Step(
            key=f"reindex-locked:{database}:{relation.oid}",
            kind=StepKind.REINDEX_LOCKED,
            stage=stage,
            database=database,
            object=f"{database}.{relation.schema}.{relation.name}",
            reason=f"{reason}. Its other indexes are built; {', '.join(locked)} (of an exclusion "
            "constraint, as a rule) cannot be built beside writes",
            choices=(
                Choice(
                    consent=Consent.BLOCKING_REINDEX,
                    statements=tuple(f"REINDEX INDEX {name}" for name in locked),
                    loses="nothing; but writes to the table, and reads through these indexes, wait until "
                    "they are built",
                ),
            ),
            relation_oid=relation.oid,
        )
    # Beside traffic, but for catalogs, which PostgreSQL rebuilds under a lock only.
    how = "" if relation.catalog else "CONCURRENTLY "
    return Step(
        key=f"reindex:{database}:{relation.oid}",
        kind=StepKind.REINDEX,
        stage=stage,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason=reason,
        statements=(f"REINDEX TABLE {how}{identifier(relation.schema, relation.name)}",),
        relation_oid=relation.oid,
    )
