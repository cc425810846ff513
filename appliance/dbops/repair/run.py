"""Carries a plan out: snapshot, plan, the steps of one stage, and again until nothing is left.

Owns the order of that. What to do is the plan's (`plan.py`), who takes the steps the crew's
(`crew.py`), how a step is done its deed's (`deeds.py`), what is not tried again the memory's
(`run_memory.py`), and what must not write meanwhile the quiet time's (`quiet_time.py`). Never: resets
WAL, runs VACUUM FULL, drops a table that anybody could still read, or restarts a server unasked.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.faults import STOPS, RepairFault
from appliance.dbops.limits import Stage
from appliance.dbops.plan.databases import probe_step
from appliance.dbops.plan.plan import Plan, make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Step
from appliance.dbops.repair.autovacuum_call import restore_settings
from appliance.dbops.repair.crew import Confirm, Crew, Report
from appliance.dbops.repair.deeds import Deeds, OwnServer
from appliance.dbops.repair.door import Door
from appliance.dbops.repair.quiet_time import QuietTime
from appliance.dbops.repair.result import Result
from appliance.dbops.repair.row_counts import RowComparison, RowReading
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_lock import RunLock
from appliance.dbops.repair.run_memory import ATTEMPTS_MAX, RunMemory
from appliance.dbops.repair.run_watch import RunWatch
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import NoConnectionFree, Target
from appliance.errors import DatabaseError, NotRunning

ROUNDS_MAX = 50
"""Plans in one run. A standby that comes back with its old snapshot again and again ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a run keeps what it must remember, and what it can see of the server's machine."""

    state_dir: Path
    """For the copies of damaged pages."""
    data_dir: Path | None
    """The appliance's, for maintenance mode; None: there is no server of ours."""
    wal_folders: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: its steps in the order of their ends, and what is left to be done."""

    ended: tuple[tuple[Step, Result], ...]
    left: Plan
    stopped: str | None
    """Why it ended early; None when it did all that it could."""
    rows: RowComparison | None = None
    """None: they were not to be compared, could not be, or there was no stage 1."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left."""
        return self.stopped is None and not self.left.steps


class Run:
    """One run; `go` is called once. `journal` is held by the caller.

    `rows`: count every row, or hash it too, before the first step and again before the server writes.
    """

    def __init__(
        self,
        target: Target,
        policy: Policy,
        journal: RunJournal,
        place: Surroundings,
        *,
        confirm: Confirm,
        report: Report,
        server: OwnServer | None = None,
        rows: RowReading | None = None,
    ) -> None:
        self._target = target
        self._policy = policy
        self._journal = journal
        self._report = report
        self._door = Door(target, policy.lock_timeout_ms, spare=self._spare, said=report.said)
        self._lock = RunLock(self._door.sessions())
        self._memory = RunMemory(journal)
        self._quiet = QuietTime(place.data_dir, rows, self._door, journal, report.said)
        self._crew = Crew(
            policy.workers,
            self._door,
            RunWatch(
                self._door.sessions,
                place.wal_folders,
                policy.disk_floor_bytes,
                # As patient as with a lock, which has the same cause: somebody has the table in use.
                policy.lock_timeout_ms / 1000,
                report.progressed,
            ),
            self._memory,
            Deeds(journal, place.state_dir, server, report.said),
            confirm=confirm,
            report=report,
        )
        self._has_asked_last = False

    async def go(self) -> Outcome:
        """Plan and act until nothing is left that this run may do.

        Raises NotRunning or DatabaseError when the server is away for good, has no connection free, is no
        primary, or another run is at work on it; broken off (by Ctrl-C or a kill), the next run goes on
        from the journal.
        """
        try:
            await self._door.patiently(self._lock.hold)
            return await self._go()
        finally:
            await self._lock.close()

    async def _go(self) -> Outcome:
        self._journal.write("begun", stages=self._policy.last_stage)
        sessions = self._door.sessions()
        try:
            await self._door.patiently(lambda: restore_settings(sessions, self._journal))
            snapshot, stopped = await self._rounds()
            left = self._left(snapshot)
            if not left.steps and stopped is None:
                stopped = self._memory.refusal
        finally:
            self._quiet.close()
            # A killed run's next one does this; here the server may be away.
            with contextlib.suppress(*DatabaseFailure, NotRunning, NoConnectionFree):
                await restore_settings(sessions, self._journal)
            await sessions.close()
            await self._crew.close()
        self._journal.write("finished", stopped=stopped, left=len(left.steps))
        return Outcome(
            ended=tuple(self._memory.ended), left=left, stopped=stopped, rows=self._quiet.rows
        )

    async def _rounds(self) -> tuple[Snapshot, str | None]:
        """The control flow: returns the last snapshot, and why the run ended early."""
        for _ in range(ROUNDS_MAX):
            await self._door.patiently(self._lock.hold)
            snapshot = await self._snapshot()
            plan = make_plan(snapshot, self._policy, self._memory.history())
            stage = plan.next_stage if self._crew.stopped is None else None
            if stage != 1:
                await self._quiet.end(snapshot)
            if stage is not None:
                self._report.planned(plan)
                if stage == 1:
                    await self._quiet.begin(snapshot, maintenance_too=plan.maintenance)
                await self._crew.work(plan, plan.stage(stage), snapshot)
            elif self._crew.stopped is not None or not await self._is_refused(snapshot):
                return snapshot, self._crew.stopped
        await self._quiet.end(snapshot)
        return snapshot, f"it came to no end within {ROUNDS_MAX} plans"

    async def _is_refused(self, snapshot: Snapshot) -> bool:
        """Whether the server gives out no ID although by its tables it could: asked at the end, once,
        where no step has taken one."""
        is_stopped = snapshot.stage is Stage.STOPPED and self._left(snapshot).steps
        if self._has_asked_last or self._memory.took_ids or is_stopped:
            return False
        self._has_asked_last = True
        for _ in range(ATTEMPTS_MAX):
            result = await self._crew.attempt(probe_step(), snapshot)
            if result.fault is not RepairFault.CONNECTION:
                break
        if result.fault not in STOPS:
            return False
        self._memory.refused()
        return True

    def _left(self, snapshot: Snapshot) -> Plan:
        """What is to be done, whether or not this run tries it again."""
        return make_plan(snapshot, self._policy, self._memory.history(settled=False))

    async def _snapshot(self) -> Snapshot:
        snapshot = await read_snapshot(self._door.connect)
        if snapshot.in_recovery:
            raise DatabaseError(f"{self._target} is a standby: this is for its primary")
        return snapshot

    async def _spare(self) -> None:
        await self._crew.spare()
