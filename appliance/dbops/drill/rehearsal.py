"""A rehearsal: a cluster in a situation, repaired as an operator would, what it took and what changed.

Owns the watch on when writes come back. Never: knows how a repair is done; that is a run's (`run.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.blockers.blockers import blockers
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.situation import Situation
from appliance.dbops.plan.plan import Plan, make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Choice, Consent, Step
from appliance.dbops.repair.crew import Confirm
from appliance.dbops.repair.deeds import OwnServer
from appliance.dbops.repair.progress import Progress
from appliance.dbops.repair.result import Result
from appliance.dbops.repair.row_counts import RowChange
from appliance.dbops.repair.run import Outcome, Run, Surroundings
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.verify import Check, check_ages
from appliance.dbops.snapshot.inspect import read_cluster, read_snapshot
from appliance.dbops.target import Target

POLICY = Policy(lock_timeout_ms=500, disk_floor_bytes=0)
"""A drill's locks never end, so that waiting long for one teaches nothing."""

PROBE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a repair did. Times in seconds; `writes_back_s` None: they never came back."""

    diagnosed_s: float
    """For what `db diagnose` and `db plan` read and decide."""
    blockers_found: int
    steps_planned: int
    writes_back_s: float | None
    repaired_s: float
    outcome: Outcome
    too_old: tuple[Check, ...]
    """What is not as young as the policy asks for, when the run has ended."""
    changed: tuple[str, ...]
    """Tables with other rows than before, but those whose change was agreed to."""
    restarted: bool

    @property
    def good(self) -> bool:
        """Whether writes are back, the run has left nothing, everything is young, and nothing was lost
        that was not agreed to."""
        is_done = self.writes_back_s is not None and self.outcome.is_complete
        return is_done and not self.too_old and not self.changed


class SilentReport:
    """Is told what a run does, and keeps quiet."""

    def planned(self, plan: Plan) -> None:
        """A stage begins."""

    def started(self, step: Step) -> None:
        """A step is taken."""

    def progressed(self, progress: Progress) -> None:
        """Once a second."""

    def ended(self, step: Step, result: Result) -> None:
        """A step has ended."""

    def said(self, words: str) -> None:
        """Anything else."""


async def rehearse(
    drill: Drill, situation: Situation, state_dir: Path, policy: Policy = POLICY
) -> Rehearsed:
    """Diagnose, plan, run and verify; the drill has been driven into the situation.

    Raises ApplianceError.
    """
    target = Target(directory=drill.cluster.directory)
    born = await _started_at(drill)
    began = time.monotonic()
    snapshot = await read_snapshot(target.connect)
    found = blockers(snapshot)
    plan = make_plan(snapshot, _policy_for(situation, policy))
    diagnosed_s = time.monotonic() - began
    began = time.monotonic()
    async with _watching(drill) as watch:
        outcome = await run_once(drill, situation, state_dir, policy)
    repaired_s = time.monotonic() - began
    after = await read_snapshot(target.connect)
    changed = unforeseen(await drill.changes(), situation)
    return Rehearsed(
        diagnosed_s=diagnosed_s,
        blockers_found=len(found),
        steps_planned=len(plan.steps),
        writes_back_s=None if watch.back_at is None else watch.back_at - began,
        repaired_s=repaired_s,
        outcome=outcome,
        too_old=tuple(check for check in check_ages(after, policy) if check.ok is False),
        changed=changed,
        restarted=await _started_at(drill) != born,
    )


async def run_once(
    drill: Drill, situation: Situation, state_dir: Path, policy: Policy = POLICY
) -> Outcome:
    """One run, with the consents that the situation needs and a journal in `state_dir`.

    Raises ApplianceError.
    """
    target = Target(directory=drill.cluster.directory)
    server = None
    if situation.single_user:
        server = OwnServer(cluster=drill.cluster.cluster, binaries=drill.cluster.binaries)
    journal = RunJournal(state_dir, (await read_cluster(target.connect)).system_id)
    try:
        return await Run(
            target,
            _policy_for(situation, policy),
            journal,
            Surroundings(
                state_dir=state_dir, data_dir=None, wal_folders=(drill.cluster.directory,)
            ),
            confirm=_agree_to(situation.consents),
            report=SilentReport(),
            server=server,
        ).go()
    finally:
        journal.close()


def unforeseen(found: Iterable[RowChange], situation: Situation) -> tuple[str, ...]:
    """The changes, in words, to which nobody has agreed."""
    named = ((f"{one.database}.{one.table}", one.words) for one in found)
    return tuple(f"{name}: {words}" for name, words in named if name not in situation.changes)


def _policy_for(situation: Situation, policy: Policy) -> Policy:
    return replace(policy, single_user=True) if situation.single_user else policy


def _agree_to(consents: frozenset[Consent]) -> Confirm:
    async def confirm(step: Step) -> Choice | None:
        return next((choice for choice in step.choices if choice.consent in consents), None)

    return confirm


class _Watch:
    """Since when writes have been taken without a break; None while they are refused."""

    back_at: float | None = None

    async def look(self, drill: Drill) -> None:
        """Try once. The server may be away: a repair in single-user mode stops it."""
        try:
            back = (await probe(drill.cluster.url)).back
        except DatabaseFailure:
            back = False
        if not back:
            # A database that won a handful of IDs takes writes for a moment, and is stopped again.
            self.back_at = None
        elif self.back_at is None:
            self.back_at = time.monotonic()

    async def keep_looking(self, drill: Drill) -> None:
        """Try again and again, until cancelled."""
        while True:
            await self.look(drill)
            await asyncio.sleep(PROBE_EVERY_S)


@contextlib.asynccontextmanager
async def _watching(drill: Drill) -> AsyncIterator[_Watch]:
    """Watch for writes coming back while the context is open, and once more at its end."""
    watch = _Watch()
    looking = asyncio.create_task(watch.keep_looking(drill))
    try:
        yield watch
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    await watch.look(drill)


async def _started_at(drill: Drill) -> object:
    return await drill.value("SELECT pg_postmaster_start_time()")
