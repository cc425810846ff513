"""One look at an experiment: measured in the database itself, judged, and named as its report names it.

Runs in the command's process: a look reads every message, and no chat waits for it. Never: prints.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.config import DatabaseConfig
    from appliance.experiment.findings import Analysis
    from appliance.experiment.metric_files import Metrics
    from appliance.experiment.report.subject import Subject
    from appliance.store.experiment_records import Experiment, ExperimentEvent
    from appliance.store.pool import Pool

STATEMENT_TIMEOUT_MS = 600_000
VERSION_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look shows. Without an `analysis` there was nothing to measure, and `lacks` says why."""

    experiment: Experiment
    subject: Subject
    analysis: Analysis | None = None
    lacks: str | None = None

    @property
    def to_pause(self) -> tuple[tuple[str, str], ...]:
        """Arms that do more harm than is put up with and are not paused yet, and why."""
        from appliance.experiment.report.words import guard_limit, moved

        if self.analysis is None or not self.experiment.is_running:
            return ()
        paused = {arm.name for arm in self.experiment.arms if arm.paused_at is not None}
        return tuple(
            (
                result.arm,
                "; ".join(
                    f"{item.metric.title} {moved(item)}, {guard_limit(item)} is allowed"
                    for item in result.breached
                ),
            )
            for result in self.analysis.results
            if result.breached and result.arm not in paused
        )


def look(options: argparse.Namespace) -> Look:
    """At the experiment that is named. Raises InvalidRequest, also where it is decided by a metric that is
    not there; NotFound, StorageUnavailable."""
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
    from appliance.store.pool import connect

    metrics = load_metrics(options.metrics)
    url, config = database_of(options)

    async def taken() -> tuple[Look, ...]:
        pool = await connect(url, config)
        try:
            store = Experiments(pool)
            if name is not None:
                _refuse_lacking(await store.get(name), metrics)
            return tuple(
                [
                    await _look(pool, experiment, await store.events(experiment.name), metrics)
                    for experiment in await store.all()
                    if chosen(experiment)
                ]
            )
        finally:
            pool.terminate()

    return asyncio.run(taken())


async def _look(
    pool: Pool, experiment: Experiment, events: tuple[ExperimentEvent, ...], metrics: Metrics
) -> Look:
    from appliance.experiment.analysis import analyse
    from appliance.experiment.findings import Plan
    from appliance.experiment.measuring import NobodyYet, measure

    subject = _subject(experiment, events)
    try:
        found = await measure(pool, experiment, metrics)
    except NobodyYet as nothing:
        return Look(experiment=experiment, subject=subject, lacks=nothing.message)
    analysis = analyse(found, Plan.of(experiment.options))
    return Look(experiment=experiment, subject=subject, analysis=analysis)


def _refuse_lacking(experiment: Experiment, metrics: Metrics) -> None:
    lacking = [name for name in experiment.options.primary if name not in metrics.by_name]
    if lacking:
        raise InvalidRequest(
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


def database_of(options: argparse.Namespace) -> tuple[str, DatabaseConfig]:
    """The address of the appliance's database, and settings for long questions."""
    import msgspec

    from appliance.cli.postgres import with_own_postgres
    from appliance.config import DatabaseConfig
    from appliance.credentials import load_as_service
    from appliance.dbops.cluster.cluster import socket_url

    if options.config is not None:
        database = with_own_postgres(load_as_service(options.config)).database
    else:
        from appliance.cli.demo_paths import demo_paths

        database = DatabaseConfig(url=socket_url(demo_paths(options.data_dir).postgres_dir))
    assert database.url is not None
    patient = msgspec.structs.replace(database, statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    return database.url, patient
