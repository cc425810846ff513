"""What cannot be read, by the error that a step met. Never: looks for damage, or mends any."""

from __future__ import annotations

import asyncpg

from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.faults import (
    RepairFault,
    damaged_block,
    damaged_file,
    is_index_fault,
    is_value_fault,
    repair_fault,
)
from appliance.dbops.plan.step import Step
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import Connection


def names_damage(error: asyncpg.PostgresError) -> bool:
    """Whether it tells of something that cannot be read; a missing file is so only where it is a
    relation's, and not one of the outcomes of transactions."""
    fault = repair_fault(error)
    is_missing = fault is RepairFault.MISSING_FILE and damaged_file(error) is not None
    return fault is RepairFault.DAMAGED or is_missing


async def damage_met(
    step: Step, error: asyncpg.PostgresError, connection: Connection, snapshot: Snapshot
) -> Damage:
    """Of the step's table, of its TOAST, or of an index of the two, as `connection` in its database
    tells by the file."""
    file = damaged_file(error)
    row = (
        None
        if file is None
        else await connection.fetchrow(QUERIES["relation_of_file"], step.relation_oid, file)
    )
    place = step.relation_oid if row is None else row["relation_oid"]
    relation = snapshot.relation(step.database, place)
    assert step.database is not None
    assert place is not None
    index = None if row is None else row["index"]
    return Damage(
        kind=_kind(error, is_index=is_index_fault(error) if row is None else index is not None),
        database=step.database,
        relation_oid=place,
        schema="" if relation is None else relation.schema,
        relation="" if relation is None else relation.name,
        index=index,
        block=damaged_block(error),
        message=str(error),
    )


def _kind(error: asyncpg.PostgresError, *, is_index: bool) -> DamageKind:
    if is_index:
        return DamageKind.INDEX
    if repair_fault(error) is RepairFault.MISSING_FILE:
        return DamageKind.FILE
    if is_value_fault(error):
        return DamageKind.VALUE
    return DamageKind.ROW if damaged_block(error) is None else DamageKind.PAGE
