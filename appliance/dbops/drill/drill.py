"""One throw-away cluster, driven into a situation. Owns the way there, and who acts on it.

Never: repairs anything. The method: `pg_resetwal` moves the next ID of a stopped cluster close to the
limit, and the last IDs are spent by subtransactions that are rolled back; no file is forged but empty
pages, which PostgreSQL would have written on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import asyncpg

from appliance.dbops.drill.actors import Actor, HeldSession, Standby
from appliance.dbops.drill.counters import move_to_the_brink, move_to_xid, spend
from appliance.dbops.drill.ground import GROUND
from appliance.dbops.drill.situation import Counter, Situation
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.row_counts import RowChange, RowCounts, changes, count_rows
from appliance.dbops.settings import SUPERUSER
from appliance.dbops.snapshot.inspect import read_cluster
from appliance.dbops.target import LOCK_TIMEOUT_MS, Connection, Target

DATABASE = "app"
"""The application's database in a drill."""

HALFWAY_XIDS = 1_000_000_000
WAIT_TIMEOUT_S = 30.0
POLL_S = 0.02

Progress = Callable[[str], None]


class Drill:
    """A cluster on its way into a situation, and the actors in it.

    `counts` are of the rows as they are before the damage; None until then.
    """

    def __init__(self, cluster: ThrowAway) -> None:
        self.cluster = cluster
        self.counts: RowCounts | None = None
        self._actors: list[Actor] = []
        self._pins: list[str] = []

    async def drive(self, situation: Situation, progress: Progress) -> None:
        """From a cluster just created (not running) into `situation`; it runs when this returns."""
        progress("making the tables")
        await self.cluster.start()
        await self._execute_in(SUPERUSER, f"CREATE DATABASE {DATABASE}")
        await self.execute(GROUND["create"])
        await situation.plant(self)
        if situation.holds_back:
            await self._freeze_all_but(frozenset())
        await self.execute(GROUND["load"])
        await situation.loaded(self)
        if situation.kept_old:
            progress("half of the way: freezing what is not to be old")
            await self._go_halfway(situation)
        self.counts = await self._count()
        progress(f"moving the next ID to the end of the {situation.counter.value}")
        await self._jump(situation)
        await situation.warm(self)
        for gid in self._pins:
            await self.execute(f"ROLLBACK PREPARED '{gid}'")
        progress("spending the last IDs")
        await self._spend(situation.counter)
        await situation.stopped(self)

    async def changes(self) -> tuple[RowChange, ...]:
        """The tables whose rows are not those from before the damage."""
        assert self.counts is not None
        return changes(self.counts, await self._count())

    async def connect(self, database: str = DATABASE) -> Connection:
        """A superuser's session; the caller closes it."""
        return await asyncpg.connect(self.cluster.url(database), statement_cache_size=0)

    async def execute(self, statements: str) -> None:
        """Run statements in the application's database, in one transaction where there are several."""
        await self._execute_in(DATABASE, statements)

    async def execute_each(self, database: str, *statements: str) -> None:
        """Run statements in one session, each on its own."""
        connection = await self.connect(database)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def value(self, query: str, database: str = DATABASE) -> object:
        """The only value of a query."""
        connection = await self.connect(database)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    async def session(
        self, application: str, *statements: str, database: str = DATABASE
    ) -> HeldSession:
        """A client that runs statements and stays until the drill ends."""
        held = await HeldSession.open(self.cluster.url(database), application, *statements)
        self._actors.append(held)
        return held

    async def standby(self, *, xmin: int, slot: str | None = None) -> Standby:
        """A standby whose feedback names `xmin`, until it is closed or the drill ends."""
        standby = Standby(self.cluster.socket_path, user=SUPERUSER, xmin=xmin, slot=slot)
        self._actors.append(standby)
        await standby.start()
        return standby

    async def prepare(self, gid: str) -> None:
        """Leave a prepared transaction with one row in `pending`."""
        await self.execute_each(
            DATABASE,
            "BEGIN",
            f"INSERT INTO pending (gid) VALUES ('{gid}')",
            f"PREPARE TRANSACTION '{gid}'",
        )

    async def pin(self, gid: str) -> None:
        """A prepared transaction that takes today's horizon to the brink, for a session to inherit there.

        It is rolled back before the last IDs are spent.
        """
        await self.prepare(gid)
        self._pins.append(gid)

    async def oldest_xid(self) -> int:
        """The oldest `datfrozenxid` of all databases."""
        found = await self.value(
            "SELECT datfrozenxid::text::bigint FROM pg_database ORDER BY age(datfrozenxid) DESC LIMIT 1"
        )
        assert isinstance(found, int)
        return found

    async def close(self) -> None:
        """End the actors and remove the cluster."""
        await self.end_actors()
        await self.cluster.remove()

    async def end_actors(self) -> None:
        """End everybody who acts on the cluster, which stays."""
        while self._actors:
            await self._actors.pop().close()

    async def wait_until(self, query: str) -> None:
        """Wait until the only value of a query is true."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                if await self.value(query):
                    return
                await asyncio.sleep(POLL_S)

    async def wait_for_recovery(self, witness: HeldSession) -> None:
        """Wait until the server takes sessions again, after a crash that `witness` does not survive."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                if not witness.ended:
                    await asyncio.sleep(POLL_S)
                    continue
                try:
                    await self.value("SELECT 1")
                except (asyncpg.PostgresError, OSError):
                    await asyncio.sleep(POLL_S)
                else:
                    return

    async def _count(self) -> RowCounts:
        """All rows of all users' tables, which takes no XID."""
        target = Target(directory=self.cluster.directory)
        sessions = MaintenanceSessions(target, LOCK_TIMEOUT_MS)
        try:
            return await count_rows(await read_cluster(target.connect), sessions, digest=True)
        finally:
            await sessions.close()

    async def _spend(self, counter: Counter) -> None:
        connection = await self.connect()
        try:
            await spend(connection, counter)
        finally:
            await connection.close()

    async def _execute_in(self, database: str, statements: str) -> None:
        await self.execute_each(database, statements)

    async def _databases(self) -> Mapping[str, bool]:
        """Names, and whether they take connections."""
        connection = await self.connect(SUPERUSER)
        try:
            rows = await connection.fetch(GROUND["databases"])
        finally:
            await connection.close()
        return {row["name"]: row["connectable"] for row in rows}

    async def _freeze_all_but(self, kept_old: frozenset[str]) -> None:
        for name, connectable in (await self._databases()).items():
            if name in kept_old:
                continue
            if not connectable:
                await self._execute_in(SUPERUSER, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            await self._execute_in(name, "VACUUM (FREEZE)")
            if not connectable:
                await self._execute_in(SUPERUSER, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")

    async def _go_halfway(self, situation: Situation) -> None:
        assert not self._pins, "a pinned horizon and a halfway station do not go together"
        await self.cluster.stop()
        await move_to_xid(self.cluster, HALFWAY_XIDS)
        await self.cluster.start()
        await self._freeze_all_but(situation.kept_old)
        await situation.halfway(self)

    async def _jump(self, situation: Situation) -> None:
        await self.end_actors()
        await self.cluster.stop()
        prepared = self.cluster.take_prepared()
        await move_to_the_brink(self.cluster, situation.counter)
        if prepared:
            await self.cluster.start()
            await self._execute_in(SUPERUSER, "CHECKPOINT")
            await self.cluster.stop_at_once()
            self.cluster.give_prepared(prepared)
        await situation.cold(self)
        await self.cluster.start()
        if prepared:
            await self.value("SELECT pg_promote(false)")
            await self.wait_until("SELECT NOT pg_is_in_recovery()")
