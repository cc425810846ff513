"""Whether a repair has reached what it was for: ages, a transaction ID and a multixact taken, structures.

Writes nothing that stays: the probes are rolled back, and cost a handful of transaction IDs and one
multixact.
Never: repairs what it finds.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import asyncpg

from appliance.counted import counted
from appliance.dbops.amcheck import Amcheck
from appliance.dbops.faults import repair_fault
from appliance.dbops.limits import MEMBERS_MAX
from appliance.dbops.plan.databases import TAKE_MULTIXACT, TAKE_XID
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.vacuum import age_limits
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.row_counts import RowComparison
from appliance.dbops.snapshot.snapshot import Database, Relation, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; `ok` None: it could not be."""

    name: str
    ok: bool | None
    words: str


def check_ages(snapshot: Snapshot, policy: Policy) -> Iterator[Check]:
    """Every database, template0 too, and every relation below the ages of the last stage. Pure."""
    limits = age_limits(snapshot, policy)
    number = min(policy.last_stage, 2) - 1
    for database in snapshot.databases:
        if database.dropping:
            continue
        ages = f"{database.xid_age:,} XIDs and {database.mxid_age:,} MXIDs old"
        old = [
            relation
            for relation in database.relations or ()
            if relation.xid_age >= limits.xid[number] or relation.mxid_age >= limits.mxid[number]
        ]
        is_young = database.xid_age < limits.xid[number] and database.mxid_age < limits.mxid[number]
        words = f"{ages}, {counted(len(old), 'relation')} too old" if old else ages
        yield Check(name=f"age of {database.name}", ok=is_young and not old, words=words)
    yield _members(snapshot, policy)


def _members(snapshot: Snapshot, policy: Policy) -> Check:
    if snapshot.members is None:
        return Check(name="member space", ok=None, words="it may not be read")
    words = f"{snapshot.members.used:,} of it are in use"
    shares = (policy.members_share_first, policy.members_share_last)
    share = shares[min(policy.last_stage, 2) - 1]
    return Check(
        name="member space",
        ok=snapshot.members.used <= share * MEMBERS_MAX,
        words=f"{words}, at most {share:.0%} are to be",
    )


def check_rows(found: RowComparison) -> Iterator[Check]:
    """Each table whose rows are not those of the first count, and all together. Pure."""
    for change in found.changes:
        yield Check(
            name=f"rows of {change.database}.{change.table}",
            ok=None if change.is_loss is None else not change.is_loss,
            words=change.words,
        )
    yield Check(
        name="rows",
        ok=None if found.is_loss is None else not found.is_loss,
        words=f"{counted(found.tables, 'table')} compared, {len(found.changes):,} not as before",
    )


async def probe(sessions: MaintenanceSessions) -> AsyncIterator[Check]:
    """Take a transaction ID, then a multixact: what was refused in the stop."""
    connection = await sessions.get(None)
    try:
        xid = await connection.fetchval(TAKE_XID)
    except asyncpg.PostgresError as error:
        yield Check(
            name="transaction ID", ok=False, words=f"refused: {repair_fault(error)}: {error}"
        )
        return
    yield Check(name="transaction ID", ok=True, words=f"{xid} was given out")
    try:
        for statement in TAKE_MULTIXACT:
            await connection.execute(statement)
    except asyncpg.PostgresError as error:
        await connection.execute("ROLLBACK")
        yield Check(name="multixact", ok=False, words=f"refused: {repair_fault(error)}: {error}")
    else:
        yield Check(name="multixact", ok=True, words="one was given out")


async def check_structures(
    snapshot: Snapshot, sessions: MaintenanceSessions, *, bytes_max: int
) -> AsyncIterator[Check]:
    """Tables and b-trees through amcheck, where a database has it: the smallest, while bytes last."""
    for database in snapshot.databases:
        if not database.connectable:
            continue
        connection = await sessions.get(database.name)
        amcheck = await Amcheck.of(connection)
        name = f"structures in {database.name}"
        if amcheck is None:
            yield Check(name=name, ok=None, words="the extension amcheck is not installed there")
            continue
        tables = smallest(database, bytes_max // snapshot.block_size)
        faults = []
        for table in tables:
            faults += await _table_faults(amcheck, table)
        indexes = await amcheck.b_trees([table.oid for table in tables])
        for index in indexes:
            faults += await _index_faults(amcheck, index)
        told = [f"{counted(len(tables), 'table')} and {counted(len(indexes), 'b-tree')} looked at"]
        left_out = set(_lasting(database)).difference(tables)
        if left_out:
            mib = sum(one.pages for one in left_out) * snapshot.block_size / (1 << 20)
            told.append(f"{counted(len(left_out), 'table')} of {mib:,.0f} MiB not looked at")
        ok = False if faults else None if left_out else True
        yield Check(name=name, ok=ok, words="; ".join([*told, *faults[:5]]))


def smallest(database: Database, pages_max: int) -> list[Relation]:
    """The smallest relations, by the pages that they have now, as far as `pages_max` go. Pure."""
    lasting = sorted(_lasting(database), key=lambda one: (one.pages, one.oid))
    totals = itertools.accumulate(relation.pages for relation in lasting)
    return [one for one, total in zip(lasting, totals, strict=True) if total <= pages_max]


def _lasting(database: Database) -> list[Relation]:
    return [relation for relation in database.relations or () if not relation.temporary]


async def _table_faults(amcheck: Amcheck, table: Relation) -> list[str]:
    place = f"{table.schema}.{table.name}"
    try:
        bad = await amcheck.first_bad_row(table.oid)
    except asyncpg.PostgresError as error:
        return [f"{place}: {error}"]
    return [] if bad is None else [f"{place}, page {bad.block}: {bad.message}"]


async def _index_faults(amcheck: Amcheck, index: asyncpg.Record) -> list[str]:
    try:
        await amcheck.check_b_tree(index["oid"])
    except asyncpg.PostgresError as error:
        return [f"{index['schema']}.{index['name']}: {error}"]
    return []
