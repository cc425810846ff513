"""Looks at a run every second: how far the VACUUMs are, for whom they wait, and whether the disk has room
for their WAL.

Owns two sessions for that. Never: takes a step; it breaks off those of its own run alone, for the disk's
sake or because somebody has a page in use without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.plan.step import Step, StepKind
from appliance.dbops.repair.disk_floor import Room, least_room
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.page_wait import PageWait, PageWaits, page_wait
from appliance.dbops.repair.progress import Progress, ProgressMeter
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.target import Connection
from appliance.errors import ApplianceError

WATCH_EVERY_S = 1.0
KEEP_OUT_EVERY_S = 0.1
"""A standby sends its snapshot as soon as it is back, and a VACUUM looks for snapshots as it begins."""
_AWAY = (*DatabaseFailure, ApplianceError)


class RunWatch:
    """`room` is set once the disk is too full to go on, and stays so."""

    def __init__(
        self,
        new_sessions: Callable[[], MaintenanceSessions],
        folders: Sequence[Path],
        disk_floor_bytes: int,
        page_wait_s_max: float,
        progressed: Callable[[Progress], None],
    ) -> None:
        self._sessions = new_sessions()
        self._gate = new_sessions()
        self._folders = folders
        self._floor_bytes = disk_floor_bytes
        self._page_wait_s_max = page_wait_s_max
        self._progressed = progressed
        self._meter: ProgressMeter | None = None
        self._steps: dict[str, Step] = {}
        self._pids: dict[str, int] = {}
        self._waits = PageWaits()
        self._given_up: dict[str, PageWait] = {}
        self._kept_out: dict[tuple[str | None, str | None], Step] = {}
        self._is_spared = False
        self.room: Room | None = None

    def begun(self, key: str, pid: int) -> None:
        """A step is worked on by this server process."""
        self._pids[key] = pid
        if self._meter is not None:
            self._meter.started(key)

    def ended(self, key: str) -> None:
        """It no longer is."""
        self._pids.pop(key, None)
        self._waits.ended(key)
        if self._meter is not None:
            self._meter.ended(key)

    def given_up(self, key: str) -> PageWait | None:
        """Why the watch broke a step off, told once; None when it did not."""
        return self._given_up.pop(key, None)

    def keep_out(self, step: Step) -> None:
        """A standby that was ended with consent stays away while this stage lasts, if it can be told."""
        if step.application is not None:
            self._kept_out[step.application, step.client] = step

    def is_kept_out(self, step: Step) -> bool:
        """Whether a step ends a standby for whose staying away this stage has consent."""
        return (
            step.kind is StepKind.END_STANDBY and (step.application, step.client) in self._kept_out
        )

    @property
    def keeps_out(self) -> bool:
        """Whether any standby is to stay away: it may be back, for a moment, as a VACUUM begins."""
        return bool(self._kept_out)

    async def clear_way(self, connection: Connection) -> None:
        """End the standbys that are to be kept out, through a session that is about to work."""
        for (application, client), step in self._kept_out.items():
            await connection.fetch(QUERIES["keep_out"], application, client, step.xid_age_max)

    def check_room(self) -> None:
        """Look at the disk now."""
        room = least_room(self._folders, self._floor_bytes)
        if self.room is None and room is not None and not room.is_enough:
            self.room = room

    @contextlib.asynccontextmanager
    async def watching(self, steps: Sequence[Step], rate_bytes_per_s: float) -> AsyncIterator[None]:
        """Watch while these steps of one stage are taken. What stays away does so for all plans of it."""
        self._meter = ProgressMeter(
            steps, rate_bytes_per_s=rate_bytes_per_s, now_s=time.monotonic()
        )
        self._steps = {step.key: step for step in steps}
        self._pids.clear()
        self._given_up.clear()
        self._kept_out = {
            who: step for who, step in self._kept_out.items() if step.stage == steps[0].stage
        }
        self._is_spared = False
        tasks = [
            asyncio.create_task(self._watch(self._meter)),
            asyncio.create_task(self._keep_out()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def spare(self) -> None:
        """Have a session for the moment of a look only, until this stage ends: the steps need them."""
        self._is_spared = True

    async def close(self) -> None:
        """Close the sessions."""
        await self._sessions.close()
        await self._gate.close()

    async def _watch(self, meter: ProgressMeter) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            self.check_room()
            try:
                await self._look(meter)
            except _AWAY:
                # The steps themselves meet a server that is away; here there is only nothing to see.
                await self._sessions.drop(None)
            if self._is_spared:
                await self._sessions.close()
            self._progressed(meter.at(time.monotonic()))

    async def _look(self, meter: ProgressMeter) -> None:
        if not self._pids:
            return
        connection = await self._sessions.get(None)
        keys = {pid: key for key, pid in self._pids.items()}
        if self.room is not None:
            await connection.fetch(QUERIES["cancel"], list(keys))
            return
        for row in await connection.fetch(QUERIES["progress"], list(keys)):
            key = keys[row["pid"]]
            if row["pages_total"] is not None:
                meter.advanced(key, row["pages_scanned"], row["pages_total"])
            waited_s = self._waits.seen(
                key,
                waits=row["waits_for_page"] is True,
                pages_scanned=row["pages_scanned"],
                now_s=time.monotonic(),
            )
            if waited_s >= self._page_wait_s_max and self._steps[key].relation_oid is not None:
                await self._give_up(connection, self._steps[key], row["pid"], waited_s)

    async def _give_up(self, connection: Connection, step: Step, pid: int, waited_s: float) -> None:
        holders = await connection.fetch(
            QUERIES["page_holders"], step.database, step.relation_oid, waited_s
        )
        self._given_up[step.key] = page_wait(
            step, waited_s, [row for row in holders if row["pid"] != pid]
        )
        await connection.fetch(QUERIES["give_page_up"], pid)

    async def _keep_out(self) -> None:
        while True:
            await asyncio.sleep(KEEP_OUT_EVERY_S)
            try:
                if self._kept_out:
                    await self.clear_way(await self._gate.get(None))
            except _AWAY:
                await self._gate.drop(None)
