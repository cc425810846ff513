"""The workers of a run: they take the steps of one stage, until none is left or a look is worth more.

Owns their sessions, the watch over them, and when consent is asked for. Never: decides which steps there
are (`plan.py`) or how one is done (`deeds.py`), or goes on when the disk is near its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from appliance.counted import counted
from appliance.dbops.faults import RepairFault
from appliance.dbops.plan.plan import Plan
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.deeds import Deeds
from appliance.dbops.repair.door import Door
from appliance.dbops.repair.progress import Progress
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_memory import RunMemory
from appliance.dbops.repair.run_step import StepTaker
from appliance.dbops.repair.run_watch import RunWatch
from appliance.dbops.repair.workers import together
from appliance.dbops.snapshot.snapshot import Snapshot

SURPRISES_MAX = 3
"""Times that a run plans anew because a VACUUM won nothing; then it goes through with what it has."""

NAMED_MAX = 3
"""Steps that another one waits for and that are named in words; of more, the number is told."""

Confirm = Callable[[Step], Awaitable[Choice | None]]
"""Asks for consent to a destructive step: which of its choices, or None for none."""


class Report(Protocol):
    """Is told what happens, as it happens."""

    def planned(self, plan: Plan) -> None: ...
    def started(self, step: Step) -> None: ...
    def progressed(self, progress: Progress) -> None: ...
    def ended(self, step: Step, result: Result) -> None: ...
    def said(self, words: str) -> None: ...


@dataclass(slots=True)
class _Shift:
    """Of the steps of one plan's stage: what was met, and who is at work."""

    snapshot: Snapshot
    planned: Mapping[str, Step] = field(default_factory=dict)
    """Every step of the plan, by key."""
    done: set[str] = field(default_factory=set)
    """Keys, for the steps that need them."""
    at_work: int = 0
    is_stale: bool = False
    """Whether the plan is to be made anew before the next step."""


class Crew:
    """`stopped` says why the run is to end, once it is so."""

    def __init__(
        self,
        workers: int,
        door: Door,
        watch: RunWatch,
        memory: RunMemory,
        deeds: Deeds,
        *,
        confirm: Confirm,
        report: Report,
    ) -> None:
        self._door = door
        self._watch = watch
        self._memory = memory
        self._deeds = deeds
        self._confirm = confirm
        self._report = report
        self._takers = [
            StepTaker(door.sessions(), watch.begun, watch.clear_way) for _ in range(workers)
        ]
        self._surprises = 0
        self.stopped: str | None = None

    async def work(self, plan: Plan, steps: Sequence[Step], snapshot: Snapshot) -> None:
        """Take the steps in their order, VACUUMs side by side."""
        shift = _Shift(snapshot, {step.key: step for step in plan.steps})
        async with self._watch.watching(steps, plan.rate_bytes_per_s):
            for is_vacuum, group in groupby(steps, lambda step: step.kind is StepKind.VACUUM):
                queue = list(group)
                queue.reverse()
                takers = self._takers if is_vacuum else self._takers[:1]
                await together(self._drain(taker, queue, shift) for taker in takers)

    async def attempt(self, step: Step, snapshot: Snapshot) -> Result:
        """Take a step that needs no other."""
        result = await self._attempt(self._takers[0], step, _Shift(snapshot))
        assert result is not None
        return result

    async def spare(self) -> None:
        """Give up the sessions with which nobody is at work just now."""
        self._watch.spare()
        for taker in self._takers:
            if not taker.is_busy:
                await taker.close()

    async def close(self) -> None:
        """Close all sessions."""
        await self._watch.close()
        for taker in self._takers:
            await taker.close()

    async def _drain(self, taker: StepTaker, queue: list[Step], shift: _Shift) -> None:
        """Take the last step of the queue until there is none: several workers share one."""
        shift.at_work += 1
        while queue and self.stopped is None and not shift.is_stale:
            step = queue.pop()
            result = await self._attempt(taker, step, shift)
            if result is None:
                queue.append(step)
                break
            self._judge(step, result, shift)
        shift.at_work -= 1

    def _judge(self, step: Step, result: Result, shift: _Shift) -> None:
        """What a step's end means for those that follow."""
        if result.state is State.DONE:
            shift.done.add(step.key)
            if step.kind is StepKind.END_STANDBY:
                self._watch.keep_out(step)
            elif step.kind is StepKind.END_OWNER:
                shift.is_stale = True  # In the stop its tables are left behind, as orphans.
        is_held = result.state is State.HELD and step.kind is StepKind.VACUUM
        if is_held and self._surprises < SURPRISES_MAX:
            # Something new holds it, and would hold the rest too: look before reading all of that.
            self._surprises += 1
            shift.is_stale = True

    async def _attempt(self, taker: StepTaker, step: Step, shift: _Shift) -> Result | None:
        """Take a step, write down and tell how it ended, and wait for a server that has gone away; None
        when it is left to another worker, the server having no connection for this one."""
        result = self._obstacle(step, shift)
        choice = None
        if result is None and step.destructive:
            is_agreed = self._watch.is_kept_out(step)
            choice = step.choices[0] if is_agreed else await self._confirm(step)
            if choice is None:
                kinds = " or ".join(f"--yes {choice.consent.value}" for choice in step.choices)
                words = f"nobody has agreed to it; {kinds} does"
                result = Result(state=State.DECLINED, words=words)
        if result is None:
            result = await self._take(taker, step, choice, shift)
            if result is None:
                return None
        self._memory.remember(step, result)
        self._report.ended(step, result)
        if result.fault is RepairFault.CONNECTION:
            await self._door.return_of_server()
        return result

    def _obstacle(self, step: Step, shift: _Shift) -> Result | None:
        """Why a step is not taken at all."""
        unmet = [key for key in step.needs if key not in shift.done]
        if unmet:
            named = [shift.planned[key] for key in unmet[:NAMED_MAX] if key in shift.planned]
            words = [f"{step.kind.value} ({step.object})" for step in named]
            if len(unmet) > len(words):
                words.append(counted(len(unmet) - len(words), "other step"))
            return Result(
                state=State.SKIPPED,
                words=f"it would change nothing while these are left: {', '.join(words)}",
            )
        if step.kind is StepKind.ASK:
            return Result(state=State.SKIPPED, words="only a person can do this")
        return None

    async def _take(
        self, taker: StepTaker, step: Step, choice: Choice | None, shift: _Shift
    ) -> Result | None:
        self._watch.check_room()
        if self._watch.room is not None:
            return self._no_room()
        self._memory.announce(step, choice)
        self._report.started(step)
        if step.kind is StepKind.DROP_TEMP_OFFLINE:
            await self.close()  # The server is stopped for it.
        result = await self._do(taker, step, choice, shift)
        if result is None:
            return None
        waited = self._watch.given_up(step.key)
        if waited is not None and result.fault is RepairFault.CANCELLED:
            self._memory.pinned(waited.pins)
            return replace(result, words=waited.words, fault=RepairFault.PINNED)
        if result.state is State.HELD and self._watch.keeps_out:
            words = f"{result.words}: a standby that is kept out was back for a moment"
            return replace(result, words=words, fault=RepairFault.RETURNED)
        if result.fault is RepairFault.DISK_FULL:
            self.stopped = f"the server's disk is full: {result.words}"
        elif self._watch.room is not None and result.fault is RepairFault.CANCELLED:
            return self._no_room()
        return result

    async def _do(
        self, taker: StepTaker, step: Step, choice: Choice | None, shift: _Shift
    ) -> Result | None:
        """Until the server had a connection for it. While others are at work they take what is left."""
        while True:
            result = await self._deeds.do(step, choice, shift.snapshot, taker)
            self._watch.ended(step.key)
            if result.fault is not RepairFault.FULL:
                return result
            await taker.close()
            await self.spare()
            if shift.at_work > 1:
                return None
            await self._door.room()

    def _no_room(self) -> Result:
        room = self._watch.room
        assert room is not None
        self.stopped = (
            f"{room.folder} has {room.free_bytes >> 20:,} MiB free, and {room.floor_bytes >> 20:,} "
            "are to stay so: make room there (never by deleting WAL by hand) and run this again"
        )
        return Result(state=State.STOPPED, words=self.stopped)
