"""Carries a plan out: snapshot, plan, the steps of one stage, and again until nothing is left.

Owns the order, the workers, and what is told and asked. What to do is the plan's (`plan.py`), how a
step is taken its taker's (`run_step.py`). Never: resets WAL, runs VACUUM FULL, drops a table that anybody
could still read, restarts a server unasked, or goes on when the disk is near its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

from appliance.database_failure import DatabaseFailure
from appliance.dbops.cluster.binaries import Binaries
from appliance.dbops.cluster.cluster import Cluster
from appliance.dbops.faults import STOPS, Fault, fault_of
from appliance.dbops.limits import Stage
from appliance.dbops.plan.databases import probe_step
from appliance.dbops.plan.plan import Plan, make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.autovacuum_call import call_autovacuum, restore_settings
from appliance.dbops.repair.damaged_pages import give_up_damaged_pages
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.progress import Progress
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_lock import RunLock
from appliance.dbops.repair.run_memory import ATTEMPTS_MAX, RunMemory
from appliance.dbops.repair.run_step import Result, State, StepTaker
from appliance.dbops.repair.run_watch import RunWatch
from appliance.dbops.repair.single_user import drop_in_single_user_mode
from appliance.dbops.repair.workers import together
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.dbops.target import Target
from appliance.errors import ApplianceError, DatabaseError, NotRunning
from appliance.maintenance import maintenance

ROUNDS_MAX = 50
"""Plans in one run. A standby that comes back with its old snapshot again and again ends here."""
SURPRISES_MAX = 3
"""Times that a run plans anew because a VACUUM won nothing; then it goes through with what it has."""
RECONNECT_S = 60.0
RECONNECT_EVERY_S = 0.5

Confirm = Callable[[Step], Awaitable[Choice | None]]
"""Asks for consent to a destructive step: which of its choices, or None for none."""


class Report(Protocol):
    """Is told what happens, as it happens."""

    def planned(self, plan: Plan) -> None: ...
    def started(self, step: Step) -> None: ...
    def progressed(self, progress: Progress) -> None: ...
    def ended(self, step: Step, result: Result) -> None: ...
    def said(self, words: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A server that this process runs itself, and so may stop for single-user mode."""

    cluster: Cluster
    binaries: Binaries


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

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left."""
        return self.stopped is None and not self.left.steps


class Run:
    """One run; `go` is called once. `journal` is held by the caller."""

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
    ) -> None:
        self._target = target
        self._policy = policy
        self._journal = journal
        self._place = place
        self._confirm = confirm
        self._report = report
        self._server = server
        self._memory = RunMemory(journal)
        self._lock = RunLock(self._sessions())
        self._watch = RunWatch(
            self._sessions,
            place.wal_folders,
            policy.disk_floor_bytes,
            # As patient as with a lock, which has the same cause: somebody has the table in use.
            policy.lock_timeout_ms / 1000,
            report.progressed,
        )
        self._takers = [
            StepTaker(self._sessions(), self._watch.begun, self._watch.clear_way)
            for _ in range(policy.workers)
        ]
        self._met: set[str] = set()
        self._stopped: str | None = None
        self._surprises = 0
        self._again = False
        self._asked_last = False

    async def go(self) -> Outcome:
        """Plan and act until nothing is left that this run may do.

        Raises NotRunning or DatabaseError when the server is away for good, no primary, or another run is
        at work on it; broken off (by Ctrl-C or a kill), the next run goes on from the journal.
        """
        try:
            await self._lock.hold()
            return await self._go()
        finally:
            await self._lock.close()

    async def _go(self) -> Outcome:
        self._journal.write("begun", stages=self._policy.last_stage)
        sessions = self._sessions()
        try:
            await restore_settings(sessions, self._journal)
            snapshot = await self._rounds()
            left = make_plan(snapshot, self._policy, self._memory.history(settled=False))
            if not left.steps and self._stopped is None:
                self._stopped = self._memory.refusal
        finally:
            # A killed run's next one does this; here the server may be away.
            with contextlib.suppress(*DatabaseFailure, NotRunning):
                await restore_settings(sessions, self._journal)
            await sessions.close()
            await self._close_sessions()
        self._journal.write("finished", stopped=self._stopped, left=len(left.steps))
        return Outcome(ended=tuple(self._memory.ended), left=left, stopped=self._stopped)

    async def _rounds(self) -> Snapshot:
        """The control flow: returns the last snapshot."""
        with contextlib.ExitStack() as held:
            in_maintenance = False
            for _ in range(ROUNDS_MAX):
                await self._lock.hold()
                snapshot = await self._snapshot()
                plan = make_plan(snapshot, self._policy, self._memory.history())
                stage = plan.next_stage
                if in_maintenance and stage != 1:
                    held.close()
                    in_maintenance = False
                    self._report.said("maintenance mode is off: the server writes again")
                if stage is None and self._stopped is None and await self._is_refused(snapshot):
                    continue
                if stage is None or self._stopped is not None:
                    return snapshot
                self._report.planned(plan)
                if plan.maintenance and not in_maintenance and self._place.data_dir is not None:
                    held.enter_context(maintenance(self._place.data_dir))
                    in_maintenance = True
                    self._report.said(
                        "maintenance mode is on: the server keeps turns in its journal"
                    )
                await self._stage(plan, plan.stage(stage), snapshot)
        self._stopped = f"it came to no end within {ROUNDS_MAX} plans"
        return snapshot

    async def _is_refused(self, snapshot: Snapshot) -> bool:
        """Whether the server gives out no ID although by its tables it could: asked at the end, once,
        where no step has taken one."""
        left = make_plan(snapshot, self._policy, self._memory.history(settled=False))
        is_stopped = snapshot.stage is Stage.STOPPED and left.steps
        if self._asked_last or self._memory.took_ids or is_stopped:
            return False
        self._asked_last = True
        for _ in range(ATTEMPTS_MAX):
            result = await self._attempt(self._takers[0], probe_step(), snapshot)
            if result.fault is not Fault.CONNECTION:
                break
        if result.fault not in STOPS:
            return False
        self._memory.refused()
        return True

    async def _stage(self, plan: Plan, steps: Sequence[Step], snapshot: Snapshot) -> None:
        self._met.clear()
        self._again = False
        async with self._watch.watching(steps, plan.rate_bytes_per_s):
            for is_vacuum, group in groupby(steps, lambda step: step.kind is StepKind.VACUUM):
                queue = list(group)
                takers = self._takers if is_vacuum else self._takers[:1]
                queue.reverse()
                await together(self._drain(taker, queue, snapshot) for taker in takers)

    async def _drain(self, taker: StepTaker, queue: list[Step], snapshot: Snapshot) -> None:
        """Take the last step of the queue until there is none: several workers share one."""
        while queue and self._stopped is None and not self._again:
            step = queue.pop()
            result = await self._attempt(taker, step, snapshot)
            if result.state is State.DONE:
                self._met.add(step.key)
                if step.kind is StepKind.END_STANDBY:
                    self._watch.keep_out(step)
                elif step.kind is StepKind.END_OWNER:
                    self._again = True  # In the stop its tables are left behind, as orphans.
            is_held = result.state is State.HELD and step.kind is StepKind.VACUUM
            if is_held and self._surprises < SURPRISES_MAX:
                # Something new holds it, and would hold the rest too: look before reading all of that.
                self._surprises += 1
                self._again = True

    async def _attempt(self, taker: StepTaker, step: Step, snapshot: Snapshot) -> Result:
        """Take a step, write down and tell how it ended, and wait for a server that has gone away."""
        result = await self._take(taker, step, snapshot)
        self._watch.ended(step.key)
        self._memory.remember(step, result)
        self._report.ended(step, result)
        if result.fault is Fault.CONNECTION:
            await self._await_server()
        return result

    async def _take(self, taker: StepTaker, step: Step, snapshot: Snapshot) -> Result:
        unmet = [key for key in step.needs if key not in self._met]
        if unmet:
            words = f"it would change nothing while these are left: {', '.join(unmet)}"
            return Result(state=State.SKIPPED, words=words)
        if step.kind is StepKind.ASK:
            return Result(state=State.SKIPPED, words="only a person can do this")
        choice = None
        if step.destructive:
            is_agreed = self._watch.is_kept_out(step)
            choice = step.choices[0] if is_agreed else await self._confirm(step)
            if choice is None:
                return Result(state=State.DECLINED, words="nobody has agreed to it")
        self._watch.check_room()
        if self._watch.room is not None:
            return self._no_room()
        self._memory.announce(step, choice)
        self._report.started(step)
        result = await self._deed(taker, step, choice, snapshot)
        waited = self._watch.given_up(step.key)
        if waited is not None and result.fault is Fault.CANCELLED:
            self._memory.pinned(waited.pins)
            return replace(result, words=waited.words, fault=Fault.PINNED)
        if result.state is State.HELD and self._watch.keeps_out:
            words = f"{result.words}: a standby that is kept out was back for a moment"
            return replace(result, words=words, fault=Fault.RETURNED)
        if result.fault is Fault.DISK_FULL:
            self._stopped = f"the server's disk is full: {result.words}"
        elif self._watch.room is not None and result.fault is Fault.CANCELLED:
            return self._no_room()
        return result

    async def _deed(
        self, taker: StepTaker, step: Step, choice: Choice | None, snapshot: Snapshot
    ) -> Result:
        """The steps that more than statements are needed for; a failure is an outcome here too."""
        try:
            if step.kind is StepKind.AUTOVACUUM:
                sessions = self._sessions()
                try:
                    return await call_autovacuum(step, sessions, self._journal)
                finally:
                    await sessions.close()
            if step.kind is StepKind.DROP_TEMP_OFFLINE:
                assert choice is not None
                return await self._drop_offline(step, choice)
            if step.kind is StepKind.ZERO_PAGES:
                await self._give_up_pages(step, snapshot)
        except ApplianceError as error:
            return Result(state=State.FAILED, words=error.message)
        except DatabaseFailure as error:
            return Result(state=State.FAILED, words=str(error), fault=fault_of(error))
        return await taker.take(step, choice, snapshot)

    async def _drop_offline(self, step: Step, choice: Choice) -> Result:
        if self._server is None:
            raise DatabaseError(
                "the server is not this command's own: stop it and name its folder (--data-dir)"
            )
        assert step.database is not None
        await self._close_sessions()
        await drop_in_single_user_mode(
            self._server.cluster,
            self._server.binaries,
            step.database,
            choice.statements[0],
            self._report.said,
        )
        return Result(state=State.DONE)

    async def _give_up_pages(self, step: Step, snapshot: Snapshot) -> None:
        database = None if step.database is None else snapshot.database(step.database)
        relations = () if database is None else database.relations or ()
        relation = next(item for item in relations if item.oid == step.relation_oid)
        sessions = self._sessions()
        try:
            copies = await give_up_damaged_pages(
                step, relation, sessions, self._place.state_dir / "damaged-pages"
            )
        finally:
            await sessions.close()
        for path in copies:
            self._report.said(f"kept a copy of a damaged page: {path}")

    def _no_room(self) -> Result:
        room = self._watch.room
        assert room is not None
        self._stopped = (
            f"{room.folder} has {room.free_bytes >> 20:,} MiB free, and {room.floor_bytes >> 20:,} "
            "are to stay so: make room there (never by deleting WAL by hand) and run this again"
        )
        return Result(state=State.STOPPED, words=self._stopped)

    async def _snapshot(self) -> Snapshot:
        snapshot = await read_snapshot(self._target.connect)
        if snapshot.in_recovery:
            raise DatabaseError(f"{self._target} is a standby: this is for its primary")
        return snapshot

    async def _await_server(self) -> None:
        """A server that restarts comes back; raises NotRunning when it does not within a minute."""
        deadline = time.monotonic() + RECONNECT_S
        while True:
            try:
                await (await self._target.connect()).close()
            except NotRunning:
                if time.monotonic() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(RECONNECT_EVERY_S)

    async def _close_sessions(self) -> None:
        await self._watch.close()
        for taker in self._takers:
            await taker.close()

    def _sessions(self) -> MaintenanceSessions:
        return MaintenanceSessions(self._target, self._policy.lock_timeout_ms)
