"""`appliance experiment plan`: users, days and the change that could be seen, before anybody is in it.

Never: stores anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from appliance.cli.experiment_database import read
from appliance.cli.experiment_options import add_common, add_metrics
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.experiment.metric_files import Metrics
    from appliance.experiment.planning import ExperimentPlan, MetricPlan
    from appliance.store.experiment_records import Experiment
    from appliance.store.pool import Pool

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_plan(kinds: Subparsers) -> None:
    """The options of `plan`."""
    parser = kinds.add_parser("plan", help="how many users it needs, and how many days that takes")
    parser.add_argument("file", type=Path, metavar="FILE", help="the experiment, as YAML")
    add_metrics(parser)
    add_common(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    import msgspec

    from appliance.experiment.metric_files import load_metrics

    metrics = load_metrics(options.metrics)
    draft = _draft(options, metrics)
    planned = _planned(options, draft, metrics)
    if options.json:
        print(as_json(msgspec.to_builtins(planned)))
    else:
        print(visible("\n".join(_lines(options, draft, planned))))
    return 0


def _draft(options: argparse.Namespace, metrics: Metrics) -> Experiment:
    from appliance.experiment.definition import experiment_of, faults, read_definition

    definition = read_definition(options.file.read_bytes(), str(options.file))
    found = faults(definition, metrics.by_name)
    if found:
        raise InvalidRequest(f"{options.file}: " + "; ".join(found))
    return experiment_of(
        definition,
        # What users did before depends on no version.
        {arm.name: "" for arm in definition.arms},
        differs_when_cut=False,
        differs_when_opened=False,
        created_at=datetime.now(UTC),
    )


def _planned(options: argparse.Namespace, draft: Experiment, metrics: Metrics) -> ExperimentPlan:
    from appliance.experiment.measuring import measure_history
    from appliance.experiment.planning import plan_experiment

    async def planned(pool: Pool) -> ExperimentPlan:
        return plan_experiment(await measure_history(pool, draft, metrics), draft)

    return read(options, planned)


def _lines(
    options: argparse.Namespace, draft: Experiment, planned: ExperimentPlan
) -> Iterator[str]:
    yield (
        f"{draft.name}: from the last {planned.days} days of {draft.character}: "
        f"{counted(planned.came, 'user')}, {planned.let_in:,} of them would have been in it"
    )
    for item in planned.metrics:
        yield f"  {item.metric.title}: {_told(item, planned)}"
    if planned.users is not None and draft.options.looks == "any":
        yield (
            f"write `users: {planned.users}` into {options.file}: intervals that hold at every look are "
            "narrowest there"
        )


def _told(item: MetricPlan, planned: ExperimentPlan) -> str:
    from appliance.experiment.report.numbers import amount, hours, per_cent, unit_beside

    if item.value is None or item.users is None:
        return item.lacks or "nothing is known"
    unit = item.metric.unit
    days = "they do not come" if item.days is None else f"{hours(24 * item.days)} as they came"
    told = (
        f"{amount(item.value, unit)} {unit_beside(unit)}".rstrip()
        + f"; a change of {per_cent(planned.minimum_effect)} is found in four of five experiments by "
        f"{counted(item.users, 'user')} ({days})"
    )
    if item.detectable is not None:
        told += f"; {planned.days} days find one of {per_cent(item.detectable)}"
    if item.variance_kept is not None and item.variance_kept < 1:
        told += f"; the past cuts the variance by {per_cent(1 - item.variance_kept)}"
    return told
