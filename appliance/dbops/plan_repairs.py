"""Steps for what a run met on its way: damaged pages and indexes, and what freezing left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from appliance.dbops.history import History, RelationKey
from appliance.dbops.plan_vacuum import AgeLimits, order, repair_step, vacuum_settings, vacuum_step
from appliance.dbops.policy import Policy
from appliance.dbops.quoting import identifier, literal
from appliance.dbops.snapshot import Database, Relation, Snapshot
from appliance.dbops.step import Choice, Consent, Step, StepKind


def zero_steps(
    snapshot: Snapshot, limits: AgeLimits, policy: Policy, past: History
) -> Iterator[Step]:
    """For a relation with a page that cannot be read: the one way on that does not restore it."""
    for database in snapshot.databases:
        for relation in database.relations or ():
            stage = limits.stage_of(relation.xid_age, relation.mxid_age)
            place = RelationKey(database=database.name, oid=relation.oid)
            if stage is not None and place in past.bad_rows:
                yield _bad_rows_step(database.name, relation, stage)
            if stage is None or place not in past.damaged:
                continue
            plain = vacuum_step(
                snapshot,
                database.name,
                relation,
                stage=stage,
                limits=limits,
                policy=policy,
                rate_bytes_per_s=policy.rate_bytes_per_s,
            )
            settings = {
                **vacuum_settings(stage, policy, members_short=limits.members_short),
                "zero_damaged_pages": "on",
            }
            yield replace(
                plain,
                key=f"zero:{database.name}:{relation.oid}",
                kind=StepKind.ZERO_PAGES,
                reason="a page of it cannot be read. Restore the page from a backup, or give it up",
                statements=(),
                settings=settings,
                choices=(
                    Choice(
                        consent=Consent.ZERO_DAMAGED_PAGES,
                        statements=plain.statements,
                        loses="every row on the damaged pages (zero_damaged_pages); the pages are copied "
                        "to the state folder first",
                    ),
                ),
            )


def _bad_rows_step(database: str, relation: Relation, stage: int) -> Step:
    name = identifier(relation.schema, relation.name)
    return Step(
        key=f"rows:{database}:{relation.oid}",
        kind=StepKind.ASK,
        stage=stage,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason="a row in it has transaction IDs that cannot be right, and VACUUM refuses it. "
        f"verify_heapam({literal(name)}) of the extension amcheck lists such rows; one that is good is "
        f"frozen with heap_force_freeze({literal(name)}, ARRAY['(PAGE,ROW)'::tid]) of pg_surgery, which "
        "works in the stop too; then run this again",
        relation_oid=relation.oid,
        xid_age=relation.xid_age,
        mxid_age=relation.mxid_age,
    )


def repair_steps(
    snapshot: Snapshot,
    policy: Policy,
    past: History,
    rate: float,
    planned: Sequence[tuple[Database, Relation]],
) -> Iterator[Step]:
    """For every relation frozen before, and every one that this plan freezes."""
    now = {RelationKey(database=database.name, oid=relation.oid) for database, relation in planned}
    for database in snapshot.databases:
        for relation in sorted(database.relations or (), key=order):
            place = RelationKey(database=database.name, oid=relation.oid)
            if place not in past.frozen and place not in now:
                continue
            if place in past.bad_indexes:
                yield _reindex_step(database.name, relation)
            yield repair_step(
                snapshot, database.name, relation, policy=policy, rate_bytes_per_s=rate
            )


def _reindex_step(database: str, relation: Relation) -> Step:
    # Beside traffic, but for catalogs, which PostgreSQL rebuilds under a lock only.
    how = "" if relation.catalog else "CONCURRENTLY "
    return Step(
        key=f"reindex:{database}:{relation.oid}",
        kind=StepKind.REINDEX,
        stage=3,
        database=database,
        object=f"{database}.{relation.schema}.{relation.name}",
        reason="an index of it is damaged; its table is not, and the index can be built again",
        statements=(f"REINDEX TABLE {how}{identifier(relation.schema, relation.name)}",),
        relation_oid=relation.oid,
    )
