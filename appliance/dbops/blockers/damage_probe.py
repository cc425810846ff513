"""Looks for damage that would make a VACUUM fail: in the server's log, and in old relations themselves.

Owns the time it may take. Never: takes a transaction ID, changes anything, or waits for a lock for long;
with the extension amcheck it looks into rows and b-trees, without it, only whether pages can be read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import asyncpg

from appliance.database_failure import DatabaseFailure, FailureKind, failure_kind
from appliance.dbops.amcheck import Amcheck
from appliance.dbops.blockers.damage import Damage, DamageKind
from appliance.dbops.blockers.log_damage import LoggedDamage, damage_in_log
from appliance.dbops.faults import RepairFault, damaged_file, repair_fault
from appliance.dbops.quoting import identifier
from appliance.dbops.snapshot.missing import Missing
from appliance.dbops.snapshot.snapshot import AgeMin, Database, Relation, Snapshot
from appliance.dbops.target import Connection, Target
from appliance.errors import ApplianceError
from appliance.named_sql import read_queries

QUERIES = read_queries("appliance.dbops", "damage")
LOG_BYTES_MAX = 4 << 20
"""Of the newest log: days of a healthy server, minutes of one in the warning window."""

_DAMAGE = frozenset({FailureKind.DAMAGED, FailureKind.INTERNAL})


async def probe_damage(
    target: Target, snapshot: Snapshot, old: AgeMin, *, seconds_max: float
) -> tuple[tuple[Damage, ...], tuple[Missing, ...]]:
    """What is damaged, and what could not be looked at, within about `seconds_max` seconds."""
    probe = _Probe(target, snapshot, old, time.monotonic() + seconds_max)
    logged = await probe.read_log()
    for database in snapshot.databases:
        if database.connectable:
            await probe.look_into(database, logged)
    return tuple(probe.found), tuple(probe.missing)


class _Probe:
    """One look at a cluster."""

    def __init__(self, target: Target, snapshot: Snapshot, old: AgeMin, deadline: float) -> None:
        self._target = target
        self._snapshot = snapshot
        self._old = old
        self._deadline = deadline
        self.found: list[Damage] = []
        self.missing: list[Missing] = []

    async def read_log(self) -> tuple[LoggedDamage, ...]:
        """The damage that the newest log tells of."""
        try:
            connection = await self._connect(None)
        except (ApplianceError, *DatabaseFailure) as error:
            self._miss("the server's log", None, error)
            return ()
        try:
            row = await connection.fetchrow(QUERIES["log_file"])
            if row is None or row["name"] is None:
                self._miss("the server's log", None, "it does not go to a file of the server's own")
                return ()
            start = max(0, row["bytes"] - LOG_BYTES_MAX)
            tail = await connection.fetchval(QUERIES["log_tail"], row["name"], start, LOG_BYTES_MAX)
            return damage_in_log(tail.decode("utf-8", "replace"), row["line_prefix"])
        except DatabaseFailure as error:
            self._miss("the server's log", None, error)
            return ()
        finally:
            await connection.close(timeout=2)

    async def look_into(self, database: Database, logged: Sequence[LoggedDamage]) -> None:
        """Name what the log tells of this database, then read its old relations, the smallest first."""
        old = sorted(
            (
                relation
                for relation in database.relations or ()
                if not relation.temporary and self._old.reached(relation)
            ),
            key=lambda relation: relation.pages,
        )
        if not old and not logged:
            return
        try:
            connection = await self._connect(database.name)
        except (ApplianceError, *DatabaseFailure) as error:
            self._miss("damage", database.name, error)
            return
        try:
            amcheck = await Amcheck.of(connection)
            for damage in logged:
                await self._resolve(connection, database, damage, amcheck)
            for number, relation in enumerate(old):
                if time.monotonic() > self._deadline:
                    self._miss(f"damage in {len(old) - number} relations", database.name, "no time")
                    return
                await self._check(connection, database, relation, amcheck)
        except DatabaseFailure as error:
            self._miss("damage", database.name, error)
        finally:
            await connection.close(timeout=2)

    async def _connect(self, database: str | None) -> Connection:
        left_ms = max(100, int((self._deadline - time.monotonic()) * 1000))
        return await self._target.connect(database, statement_timeout_ms=left_ms)

    async def _resolve(
        self,
        connection: Connection,
        database: Database,
        logged: LoggedDamage,
        amcheck: Amcheck | None,
    ) -> None:
        """Name what a log tells of, unless it is in order: a line outlives the repair, and an index may
        have its name in several schemas and databases."""
        if logged.index is not None:
            if logged.database != database.name and self._snapshot.database(logged.database or ""):
                return  # another one's
            rows = await connection.fetch(QUERIES["relation_of_index"], logged.index)
        elif logged.database_oid == database.oid or (logged.database_oid == 0 and database.current):
            rows = await connection.fetch(
                QUERIES["relation_of_file"], logged.space_oid, logged.file
            )
        else:
            return
        for row in rows:
            if await _is_in_order(connection, row, logged.block, amcheck):
                continue
            self._add(
                Damage(
                    kind=DamageKind.PAGE if row["index"] is None else DamageKind.INDEX,
                    database=database.name,
                    relation_oid=row["oid"],
                    schema=row["schema"],
                    relation=row["relation"],
                    index=row["index"],
                    block=logged.block,
                    message=f"in the server's log: {logged.message}",
                )
            )

    async def _check(
        self,
        connection: Connection,
        database: Database,
        relation: Relation,
        amcheck: Amcheck | None,
    ) -> None:
        """Read a relation; a page, row or index that is damaged is kept, and the next one is read."""
        name = identifier(relation.schema, relation.name)
        try:
            if amcheck is not None:
                bad = await amcheck.first_bad_row(relation.oid)
                if bad is not None:
                    self._add(
                        replace(
                            _damage(database, relation, DamageKind.ROW, bad.message),
                            block=bad.block,
                        )
                    )
            else:
                await connection.fetchval(_read(name))
        except asyncpg.PostgresError as error:
            self._judge(database, relation, None, error)
        if amcheck is None:
            return
        for index in await amcheck.b_trees([relation.oid]):
            try:
                await amcheck.check_b_tree(index["oid"])
            except asyncpg.PostgresError as error:
                self._judge(database, relation, index["name"], error)

    def _judge(
        self,
        database: Database,
        relation: Relation,
        index: str | None,
        error: asyncpg.PostgresError,
    ) -> None:
        """Damage has a class of errors of its own; anything else only kept us from looking."""
        is_missing = (
            repair_fault(error) is RepairFault.MISSING_FILE and damaged_file(error) is not None
        )
        if is_missing or failure_kind(error) in _DAMAGE:
            kind = DamageKind.FILE if is_missing else DamageKind.PAGE
            found = _damage(database, relation, DamageKind.INDEX if index else kind, str(error))
            self._add(replace(found, index=index))
        else:
            name = identifier(relation.schema, index or relation.name)
            self._miss(f"damage in {name}", database.name, error)

    def _add(self, damage: Damage) -> None:
        """Once for each relation or index, whoever tells of it."""
        same = (damage.database, damage.relation_oid, damage.index)
        if all(same != (item.database, item.relation_oid, item.index) for item in self.found):
            self.found.append(damage)

    def _miss(self, part: str, database: str | None, reason: object) -> None:
        text = str(reason) or type(reason).__name__
        self.missing.append(Missing(part=part, database=database, reason=text))


def _read(name: str, start: int = 0, before: str = "") -> str:
    """Reads a table's own pages: without the condition, an index might be read in place of them."""
    return f"SELECT count(*) FROM ONLY {name} WHERE ctid >= '({start},0)'::tid{before}"


async def _is_in_order(
    connection: Connection, row: asyncpg.Record, block: int | None, amcheck: Amcheck | None
) -> bool:
    """Whether a table's page can be read by now, an index be looked through; False when not known."""
    try:
        if row["index"] is None and block is not None:
            name = identifier(row["schema"], row["relation"])
            await connection.fetchval(_read(name, block, f" AND ctid < '({block + 1},0)'::tid"))
        elif row["index"] is not None and amcheck is not None:
            await amcheck.check_b_tree(row["index_oid"])
        else:
            return False
    except asyncpg.PostgresError:
        return False
    return True


def _damage(database: Database, relation: Relation, kind: DamageKind, message: str) -> Damage:
    return Damage(
        kind=kind,
        database=database.name,
        relation_oid=relation.oid,
        schema=relation.schema,
        relation=relation.name,
        index=None,
        block=None,
        message=message,
    )
