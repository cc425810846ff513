"""A report of an experiment, from its name to what may be said of it. Owns the order of the steps.

Never: a judgement of its own, or a change to the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from appliance.experiment.analysis import analyse
from appliance.experiment.arm_values import ArmValues, arm_values
from appliance.experiment.findings import Analysis, Plan
from appliance.experiment.measuring import measure
from appliance.experiment.metric_files import Metrics
from appliance.experiment.report.document import report_document
from appliance.experiment.report.subject import ReportArm, Subject
from appliance.store.experiment_records import Experiment
from appliance.store.pool import Pool

VERSION_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one look at an experiment shows; `values` are those of every arm as they are."""

    subject: Subject
    analysis: Analysis
    values: tuple[ArmValues, ...]

    @property
    def breached(self) -> Mapping[str, str]:
        """Why an arm is to be paused, by the arm's name: those that still let users in."""
        open_arms = {arm.name for arm in self.subject.arms if arm.paused_at is None}
        return {
            result.arm: ", ".join(finding.metric.title for finding in result.breached)
            for result in self.analysis.results
            if result.breached and result.arm in open_arms
        }

    def document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {one.metric.name: list(one.values) for one in self.values}
        return {**report_document(self.subject, self.analysis), "values": values}


async def report_of(
    pool: Pool, experiment: Experiment, metrics: Metrics, shipping: Mapping[str, str]
) -> Report:
    """Measure and judge an experiment; `shipping` says by arm what making it everybody's would cost.

    Raises as `measure`.
    """
    measured = await measure(pool, experiment, metrics)
    return Report(
        subject=subject_of(experiment, shipping),
        analysis=analyse(measured, plan_of(experiment)),
        values=arm_values(measured),
    )


def plan_of(experiment: Experiment) -> Plan:
    """What was fixed before the experiment began."""
    options = experiment.options
    return Plan(deciding=options.primary, hours=24.0 * options.days)


def subject_of(experiment: Experiment, shipping: Mapping[str, str]) -> Subject:
    """The experiment as its report names it."""
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
        shipping=tuple(shipping.items()),
        notes=_notes(experiment),
    )


def _notes(experiment: Experiment) -> tuple[str, ...]:
    paused = [arm.name for arm in experiment.arms if arm.paused_at is not None]
    notes = [f"Arm {name} is paused: no more chats are opened in it." for name in paused]
    if experiment.overrides:
        notes.append(f"{len(experiment.overrides)} users have a fixed arm and are not judged by.")
    return tuple(notes)
