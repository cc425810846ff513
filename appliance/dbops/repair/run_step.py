"""Takes one step of a plan, and says how it ended. Owns the sessions it needs for that.

Never: decides what comes next, asks anybody, or raises what a server answers: a step that fails is an
outcome, and the others go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.dbops.faults import STOPS, RepairFault, repair_fault
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.index_rebuild import IndexRebuild
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.met_damage import damage_met, names_damage
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import Connection, NoConnectionFree
from appliance.errors import ApplianceError

TAKE_OVERS_MAX = 3
SLOT_TRIES_MAX = 20
SLOT_PAUSE_S = 0.1
PROBE_PATIENCE_S = 3.0
PROBE_EVERY_S = 0.05
_IN_USE = "55006"
_UNDEFINED_OBJECT = "42704"


Begun = Callable[[str, int], None]
"""Told the step's key and the pid of the session that works on it."""


ClearWay = Callable[[Connection], Awaitable[None]]
"""Called in the session of a VACUUM just before it: a VACUUM looks for snapshots as it begins."""


class StepTaker:
    """Takes steps one at a time; two of them may work side by side."""

    def __init__(self, sessions: MaintenanceSessions, begun: Begun, clear_way: ClearWay) -> None:
        self.sessions = sessions
        """Its own, for one deed at a time."""
        self.is_busy = False
        self._rebuild = IndexRebuild(sessions, self._repair)
        self._begun = begun
        self._clear_way = clear_way

    async def take(self, step: Step, choice: Choice | None, snapshot: Snapshot) -> Result:
        """Take a step that is done by statements alone; `choice` is what was agreed to.

        A step that this class does not know is a bug: those have owners of their own.
        """
        started = time.monotonic()
        self.is_busy = True
        try:
            result = await self._take(step, choice, snapshot)
        except UnicodeError as error:
            await self.sessions.close()
            result = Result(state=State.FAILED, words=f"a name is no UTF-8: {error}")
        except NoConnectionFree as error:
            result = Result(state=State.FAILED, words=error.message, fault=RepairFault.FULL)
        except ApplianceError as error:
            result = Result(state=State.FAILED, words=error.message, fault=RepairFault.CONNECTION)
        except DatabaseFailure as error:
            await self._forget(step, error)
            result = Result(state=State.FAILED, words=str(error), fault=repair_fault(error))
        finally:
            self.is_busy = False
        return replace(result, seconds=time.monotonic() - started)

    async def close(self) -> None:
        """Close the sessions."""
        await self.sessions.close()

    async def _take(self, step: Step, choice: Choice | None, snapshot: Snapshot) -> Result:
        statements = step.statements if choice is None else choice.statements
        match step.kind:
            case StepKind.VACUUM | StepKind.ZERO_PAGES | StepKind.FREEZE_ROWS:
                await self._values(step, statements[:-1])
                return await self._freeze(step, statements[-1], snapshot)
            case StepKind.REFRESH:
                await self._execute(step, statements)
                return await self._database_age(step)
            case StepKind.REPAIR:
                return await self._repair(step, statements[0], snapshot)
            case StepKind.REINDEX:
                return await self._rebuild.beside_writes(step, statements[0], snapshot)
            case StepKind.REINDEX_LOCKED:
                return await self._rebuild.under_lock(step, statements, snapshot)
            case StepKind.END_SESSION | StepKind.END_OWNER | StepKind.END_STANDBY:
                return _ended(await self._values(step, statements))
            case StepKind.DROP_SLOT:
                return await self._drop_slot(step, statements)
            case StepKind.FINISH_PREPARED:
                return await self._unless_gone(step, statements)
            case StepKind.DROP_TEMP:
                return await self._drop_temp(step, statements)
            case StepKind.PROBE:
                return await self._probe(step, statements)
            case _:
                raise AssertionError(f"{step.kind} is not taken by statements alone")

    async def _probe(self, step: Step, statements: tuple[str, ...]) -> Result:
        """Take what was refused. A server shows that its databases are young, then removes old files,
        and only then gives out IDs again: so a refusal is asked about for a while."""
        deadline = time.monotonic() + PROBE_PATIENCE_S
        while True:
            try:
                values = await self._values(step, statements)
            except asyncpg.PostgresError as error:
                await (await self.sessions.get(step.database)).execute("ROLLBACK")
                if repair_fault(error) not in STOPS or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(PROBE_EVERY_S)
            else:
                return Result(state=State.DONE, words=f"took transaction ID {values[0]}")

    async def _freeze(self, step: Step, statement: str, snapshot: Snapshot) -> Result:
        """VACUUM one relation and look what became of its age. An autovacuum that has it gives way."""
        for _ in range(TAKE_OVERS_MAX):
            try:
                await self._execute(step, (statement,))
            except asyncpg.PostgresError as error:
                fault = repair_fault(error)
                if fault is RepairFault.LOCKED and await self._end_autovacuum(step):
                    continue
                if fault is RepairFault.GONE:
                    return Result(state=State.DONE, words="it was dropped meanwhile")
                if names_damage(error):
                    return await self._damaged(step, error, snapshot)
                raise
            return await self._relation_age(step)
        return Result(
            state=State.FAILED,
            words="autovacuum takes it again and again",
            fault=RepairFault.LOCKED,
        )

    async def _repair(self, step: Step, statement: str, snapshot: Snapshot) -> Result:
        try:
            await self._execute(step, (statement,))
        except asyncpg.PostgresError as error:
            fault = repair_fault(error)
            if fault is RepairFault.GONE:
                return Result(state=State.DONE, words="it was dropped meanwhile")
            if names_damage(error):
                return await self._damaged(step, error, snapshot)
            raise
        return Result(state=State.DONE)

    async def _unless_gone(self, step: Step, statements: tuple[str, ...]) -> Result:
        """A deed that somebody else may have done since the snapshot."""
        try:
            await self._execute(step, statements)
        except asyncpg.PostgresError as error:
            if repair_fault(error) is RepairFault.GONE or error.sqlstate == _UNDEFINED_OBJECT:
                return Result(state=State.DONE, words="it was gone already")
            raise
        return Result(state=State.DONE)

    async def _drop_temp(self, step: Step, statements: tuple[str, ...]) -> Result:
        """Drop an orphan, unless its name is another table's by now.

        Its oid never gets an owner again: a session that is given its schema removes what lies there
        before it makes a table (`InitTempTableNamespace`, catalog/namespace.c).
        """
        gone = Result(state=State.DONE, words="it was gone already")
        connection = await self.sessions.get(step.database, step.settings)
        self._begun(step.key, connection.get_server_pid())
        transaction = connection.transaction()
        await transaction.start()
        try:
            name = await connection.fetchval(QUERIES["temp_table"], step.relation_oid)
            if name is None:
                return gone
            await connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
            if await connection.fetchval(QUERIES["temp_table"], step.relation_oid) != name:
                return gone
            for statement in statements:
                await connection.execute(statement)
            if await connection.fetchval(QUERIES["temp_table"], step.relation_oid) is not None:
                return Result(state=State.FAILED, words=f"it is {name} by now")
            await transaction.commit()
        except asyncpg.UndefinedTableError:
            return gone
        finally:
            if connection.is_in_transaction():
                await transaction.rollback()
        return Result(state=State.DONE)

    async def _drop_slot(self, step: Step, statements: tuple[str, ...]) -> Result:
        """Its reader, once ended, comes back and takes it again: whoever is quicker has it."""
        for _ in range(SLOT_TRIES_MAX):
            try:
                return await self._unless_gone(step, statements)
            except asyncpg.PostgresError as error:
                if error.sqlstate != _IN_USE:
                    raise
            await asyncio.sleep(SLOT_PAUSE_S)
        return Result(state=State.FAILED, words="its reader always comes back first: stop it there")

    async def _end_autovacuum(self, step: Step) -> bool:
        connection = await self.sessions.get(step.database)
        rows = await connection.fetch(QUERIES["end_autovacuum_of"], step.relation_oid)
        return bool(rows) and all(row["ended"] for row in rows)

    async def _damaged(
        self, step: Step, error: asyncpg.PostgresError, snapshot: Snapshot
    ) -> Result:
        connection = await self.sessions.get(step.database)
        damage = await damage_met(step, error, connection, snapshot)
        return Result(
            state=State.FAILED, words=str(error), fault=repair_fault(error), damage=damage
        )

    async def _relation_age(self, step: Step) -> Result:
        connection = await self.sessions.get(step.database, step.settings)
        row = await connection.fetchrow(QUERIES["relation_age"], step.relation_oid)
        if row is None:
            return Result(state=State.DONE, words="it was dropped meanwhile")
        return _by_age(step, row)

    async def _database_age(self, step: Step) -> Result:
        connection = await self.sessions.get(step.database)
        row = await connection.fetchrow(QUERIES["database_age"], step.database_oid)
        return Result(state=State.DONE) if row is None else _by_age(step, row)

    async def _execute(self, step: Step, statements: tuple[str, ...]) -> None:
        for statement in statements:
            connection = await self.sessions.get(step.database, step.settings)
            self._begun(step.key, connection.get_server_pid())
            await self._clear_way(connection)
            await connection.execute(statement)

    async def _values(self, step: Step, statements: tuple[str, ...]) -> list[object]:
        connection = await self.sessions.get(step.database, step.settings)
        return [await connection.fetchval(statement) for statement in statements]

    async def _forget(self, step: Step, error: BaseException) -> None:
        if repair_fault(error) is RepairFault.CONNECTION or not isinstance(
            error, asyncpg.PostgresError
        ):
            await self.sessions.drop(step.database)


def _by_age(step: Step, row: asyncpg.Record) -> Result:
    """Done, when it is now below the ages that the step was to bring it below."""
    xid_age, mxid_age = row["xid_age"], row["mxid_age"]
    if xid_age < step.xid_age_max and mxid_age < step.mxid_age_max:
        return Result(state=State.DONE)
    words = f"still {xid_age:,} XIDs and {mxid_age:,} MXIDs old"
    return Result(state=State.HELD, words=words)


def _ended(values: list[object]) -> Result:
    """What pg_terminate_backend said: true, false, or no row when it was gone."""
    if any(value is False for value in values):
        words = "it has not ended within 5 s; it may be later"
        return Result(state=State.FAILED, words=words, fault=RepairFault.ENDING)
    gone = all(value is None for value in values)
    return Result(state=State.DONE, words="it had ended already" if gone else "")
