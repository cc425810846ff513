"""Runs of a repair in tests: what they are told, asked and answer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from appliance.dbops.plan.plan import Plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Choice, Consent, Step
from appliance.dbops.repair.deeds import OwnServer
from appliance.dbops.repair.progress import Progress
from appliance.dbops.repair.result import Result
from appliance.dbops.repair.row_counts import RowReading
from appliance.dbops.repair.run import Outcome, Run, Surroundings
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.snapshot.inspect import read_cluster
from appliance.dbops.target import Target


class Told:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.asked: list[str] = []
        self.ended_steps: list[tuple[str, str]] = []

    def planned(self, plan: Plan) -> None:
        """A stage begins."""

    def started(self, step: Step) -> None:
        """A step is taken."""

    def progressed(self, progress: Progress) -> None:
        """Once a second."""
        assert progress.bytes_done <= progress.bytes_total
        assert progress.seconds_left >= 0

    def ended(self, step: Step, result: Result) -> None:
        """A step has ended."""
        self.ended_steps.append((step.key, result.state.value))

    def said(self, words: str) -> None:
        """Anything else."""
        self.words.append(words)


async def repair(
    directory: Path,
    state_dir: Path,
    policy: Policy,
    agreed: Iterable[Consent] = (),
    *,
    told: Told | None = None,
    server: OwnServer | None = None,
    place: Surroundings | None = None,
    rows: RowReading | None = None,
) -> Outcome:
    """One run on the cluster in `directory`, that agrees to these kinds and to no other."""
    target, report, consents = Target(directory=directory), told or Told(), set(agreed)

    async def confirm(step: Step) -> Choice | None:
        report.asked.append(step.key)
        return next((one for one in step.choices if one.consent in consents), None)

    journal = RunJournal(state_dir, (await read_cluster(target.connect)).system_id)
    place = place or Surroundings(state_dir=state_dir, data_dir=None, wal_folders=())
    try:
        return await Run(
            target, policy, journal, place, confirm=confirm, report=report, server=server, rows=rows
        ).go()
    finally:
        journal.close()
