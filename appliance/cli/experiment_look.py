"""One look at an experiment: measured in the database itself, judged, and named as its report names it.

Of one that has ended it is the look that was kept.

Runs in the command's process: a look reads every message, and no chat waits for it. Never: prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from appliance.cli.experiment_database import read
from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.experiment.findings import Analysis
    from appliance.experiment.metric_files import Metrics
    from appliance.experiment.report.subject import Subject
    from appliance.experiment.shipping import Shipped
    from appliance.store.experiment_records import Experiment, ExperimentEvent
    from appliance.store.experiments import Experiments
    from appliance.store.pool import Pool

VERSION_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look shows. Without an `analysis` there was nothing to measure, and `lacks` says why.

    `undecided` says why guardrails may be judged by it, and nothing else. `shipped` is what has been
    served since an arm was shipped.
    """

    experiment: Experiment
    subject: Subject
    analysis: Analysis | None = None
    lacks: str | None = None
    undecided: str | None = None
    shipped: Shipped | None = None

    @property
    def shown(self) -> Look:
        """As pages may tell it: an answer without the metrics that decide would be another answer."""
        if self.undecided is None or self.analysis is None:
            return self
        return replace(self, analysis=None, lacks=self.undecided)

    @property
    def to_pause(self) -> tuple[tuple[str, str], ...]:
        """Arms that do more harm than is put up with and are not paused yet, and why."""
        from appliance.experiment.report.sentences import breach

        if self.analysis is None or not self.experiment.is_running:
            return ()
        paused = {arm.name for arm in self.experiment.arms if arm.paused_at is not None}
        return tuple(
            (
                result.arm,
                " ".join(breach(item) for item in result.breached),
            )
            for result in self.analysis.results
            if result.breached and result.arm not in paused
        )


def look(options: argparse.Namespace) -> Look:
    """At the experiment that is named. Raises InvalidRequest, as for a metric that decides and is not
    there; NotFound, StorageUnavailable."""
    (found,) = _looks(options, lambda experiment: experiment.name == options.name, options.name)
    return found


def look_at_all(options: argparse.Namespace) -> tuple[Look, ...]:
    """At every experiment that has not ended; guardrails need no metric that decides."""
    return _looks(options, lambda experiment: experiment.state in ("draft", "running"), None)


def _looks(
    options: argparse.Namespace, chosen: Callable[[Experiment], bool], name: str | None
) -> tuple[Look, ...]:
    from appliance.experiment.metric_files import load_metrics
    from appliance.store.experiments import Experiments

    metrics = load_metrics(options.metrics)

    async def taken(pool: Pool) -> tuple[Look, ...]:
        store = Experiments(pool)
        if name is not None:
            await store.get(name)
        return tuple(
            [
                await _kept(pool, store, experiment)
                or await _look(
                    pool,
                    experiment,
                    await store.events(experiment.name),
                    metrics,
                    needs_deciding=name is not None,
                )
                for experiment in await store.all()
                if chosen(experiment)
            ]
        )

    return read(options, taken)


async def _kept(pool: Pool, store: Experiments, experiment: Experiment) -> Look | None:
    """The report that it ended with, and what shipping has cost since; None of one that has not ended, or
    whose report had nothing to tell or is of another version of this program."""
    from appliance.experiment.report.aftermath import aftermath
    from appliance.experiment.report.document import read_report
    from appliance.experiment.report.page import moment
    from appliance.experiment.shipping import shipped

    kept = None
    if experiment.state in ("stopped", "shipped"):
        document = await store.report(experiment.name)
        kept = None if document is None else read_report(document)
    if kept is None:
        return None
    subject, analysis = kept
    found = None
    notes = [*subject.notes, f"As it was at {moment(subject.looked_at)}, when it was ended."]
    for event in await store.events(experiment.name):
        arm = None if event.arm is None else experiment.arm(event.arm)
        if event.kind == "shipped" and arm is not None:
            found = await shipped(
                pool, experiment.character, arm.version, arm=arm.name, at=event.at
            )
            notes += aftermath(subject, analysis, found)
    subject = replace(
        subject,
        state=experiment.state,
        stopped_at=experiment.stopped_at,
        notes=tuple(dict.fromkeys(notes)),
    )
    return Look(experiment=experiment, subject=subject, analysis=analysis, shipped=found)


async def _look(
    pool: Pool,
    experiment: Experiment,
    events: tuple[ExperimentEvent, ...],
    metrics: Metrics,
    *,
    needs_deciding: bool,
) -> Look:
    from appliance.experiment.analysis import analyse
    from appliance.experiment.findings import Plan
    from appliance.experiment.measuring import NobodyYet, measure

    undecided = _undecided(experiment, metrics)
    if needs_deciding and undecided is not None:
        raise InvalidRequest(undecided)
    subject = _subject(experiment, events)
    try:
        found = await measure(pool, experiment, metrics)
    except NobodyYet as nothing:
        return Look(experiment=experiment, subject=subject, lacks=nothing.message)
    analysis = analyse(found, Plan.of(experiment.options))
    return Look(experiment=experiment, subject=subject, analysis=analysis, undecided=undecided)


def _undecided(experiment: Experiment, metrics: Metrics) -> str | None:
    """What is to be said where a metric that decides is not measured."""
    lacking = [name for name in experiment.options.primary if name not in metrics.by_name]
    if not lacking:
        return None
    return (
        f"{experiment.name} is decided by {', '.join(lacking)}, which the program does not measure: "
        "say --metrics, with the folder that declares it"
    )


def _subject(experiment: Experiment, events: tuple[ExperimentEvent, ...]) -> Subject:
    from appliance.experiment.report.page import moment
    from appliance.experiment.report.subject import ReportArm, Subject

    return Subject(
        name=experiment.name,
        character=experiment.character,
        hypothesis=experiment.hypothesis,
        state=experiment.state,
        arms=tuple(
            ReportArm(
                name=arm.name,
                version=arm.version[:VERSION_CHARACTERS],
                share=arm.share,
                paused_at=arm.paused_at,
            )
            for arm in experiment.arms
        ),
        looked_at=datetime.now(UTC),
        started_at=experiment.started_at,
        stopped_at=experiment.stopped_at,
        notes=tuple(
            f"Arm {event.arm} was paused at {moment(event.at)}: {event.message}"
            for event in events
            if event.kind == "paused"
        ),
    )
