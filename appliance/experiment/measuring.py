"""Measures an experiment: runs the metrics' queries over one moment of the ledger.

Owns the transaction and the order of rows. Never: judges what it finds, or keeps anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from appliance.errors import InvalidRequest
from appliance.experiment.columns import Columns, read_columns
from appliance.experiment.metric import Metric, Shape
from appliance.experiment.metric_files import Metrics, source_of
from appliance.experiment.samples import Measured, Observations, Sums, Users, time_of
from appliance.named_sql import read_queries
from appliance.store.experiment_records import Arm, Experiment
from appliance.store.experiments import store_draft
from appliance.store.pool import Connection, Pool, acquired

QUERIES = read_queries("appliance.experiment", "measuring")
TIMEOUT_S = 600.0
"""How long all queries of a report may take together."""

REPLIES = "replies"
"""The file of queries that counts the tokens of the first minutes, too."""


class NobodyYet(InvalidRequest):
    """There is nobody to measure, which is no fault of anything."""


async def measure(pool: Pool, experiment: Experiment, metrics: Metrics) -> Measured:
    """All figures of an experiment that has started.

    Raises NobodyYet for a draft, and when nobody is in it; InvalidRequest for a metric's query that is at
    fault; TimeoutError.
    """
    if experiment.started_at is None:
        raise NobodyYet(f"{experiment.name} has not started: there is nothing to measure")
    async with asyncio.timeout(TIMEOUT_S), _moment(pool) as connection:
        return await measure_on(connection, experiment, metrics)


async def measure_history(pool: Pool, draft: Experiment, metrics: Metrics) -> Measured:
    """What users of a draft's character did before it: what it is planned from.

    The queries are those of any experiment, so the draft is stored for them, under a name of its own, in
    a transaction that is undone. Raises NobodyYet where nobody opened a chat, and as `measure` does.
    """
    unseen = replace(draft, name=f"plan-{uuid4().hex}")
    async with asyncio.timeout(TIMEOUT_S), acquired(pool) as connection:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        try:
            # Its arms would have to name versions that are stored; nobody has been in one.
            await store_draft(connection, replace(unseen, arms=()), author="plan", message="plan")
            return await measure_on(connection, unseen, metrics)
        finally:
            await transaction.rollback()


async def measure_on(connection: Connection, experiment: Experiment, metrics: Metrics) -> Measured:
    """All figures at the moment that a connection's transaction sees; of a draft, those of the time
    before it: as if it had begun as long ago as it is to last, and all were in its control arm."""
    await connection.execute(QUERIES["settings"])
    span = await connection.fetchrow(QUERIES["span"], experiment.name)
    assert span is not None
    users = await _users(connection, experiment)
    files = {
        name: await read_columns(connection, f"{name}.sql", sql, experiment.name)
        for name, sql in metrics.sql.items()
    }
    count = len(users.arm)
    return Measured(
        users=users,
        sums=tuple(_sums(metric, files, count) for metric in _of(metrics, Shape.MEAN, Shape.RATIO)),
        observations=tuple(_observations(one, files) for one in _of(metrics, Shape.QUANTILE)),
        hours=(span["ends"] - span["begins"]).total_seconds() / 3600,
        warm_up_minutes=experiment.options.warm_up_minutes,
        warm_up_hit_ratio=_cold(users, files[REPLIES]),
    )


def _of(metrics: Metrics, *shapes: Shape) -> Iterable[Metric]:
    return (metric for metric in metrics.by_name.values() if metric.shape in shapes)


@asynccontextmanager
async def _moment(pool: Pool) -> AsyncIterator[Connection]:
    """A connection on which all queries see the same rows, so that they number the users alike."""
    async with (
        acquired(pool) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield connection


async def _users(connection: Connection, experiment: Experiment) -> Users:
    people = await read_columns(connection, "people", QUERIES["people"], experiment.name)
    apart = await connection.fetchrow(QUERIES["apart"], experiment.name)
    assert apart is not None
    person = people["person"].astype(np.int64)
    if not len(person):
        if experiment.started_at is None:
            raise NobodyYet(
                f"nobody opened a chat with {experiment.character} in the last "
                f"{experiment.options.days} days: there is nothing to plan from"
            )
        raise NobodyYet(
            f"{experiment.name}: nobody has had a prompt of it yet: "
            f"{apart['conversations']} conversations were opened in it, {apart['exposed']} had one, "
            f"{apart['testers']} users are there by an override, {apart['crossed']} in two arms"
        )
    arm = np.zeros(len(person), dtype=np.int16)
    at = np.zeros(len(person))
    arm[person], at[person] = people["arm"], people["exposed_s"]
    return Users(
        arms=tuple(one.name for one in experiment.arms),
        shares=tuple(one.share for one in experiment.arms),
        arm=arm,
        exposed_at=at,
        paused_at=tuple(_paused_s(experiment, one) for one in experiment.arms),
        crossed=apart["crossed"],
    )


def _paused_s(experiment: Experiment, arm: Arm) -> float:
    if experiment.started_at is None or arm.paused_at is None:
        return inf
    return (arm.paused_at - experiment.started_at).total_seconds()


def _sums(metric: Metric, files: dict[str, Columns], count: int) -> Sums:
    numerator = _column(metric, metric.numerator, files, count)
    before = _past(metric.numerator, files, count)
    if metric.denominator is None:
        ones = np.ones(count)
        return Sums(
            metric=metric,
            numerator=numerator,
            denominator=ones,
            before=before,
            before_denominator=None if before is None else ones,
        )
    past = _past(metric.denominator, files, count)
    has_past = before is not None and past is not None
    return Sums(
        metric=metric,
        numerator=numerator,
        denominator=_column(metric, metric.denominator, files, count),
        before=before if has_past else None,
        before_denominator=past if has_past else None,
    )


def _column(
    metric: Metric, reference: str, files: dict[str, Columns], count: int
) -> NDArray[np.float64]:
    file, column = source_of(reference)
    if column not in files[file]:
        raise InvalidRequest(f"{metric.name}: {file}.sql has no column {column!r}")
    return _by_person(files[file], column, count)


def _past(reference: str, files: dict[str, Columns], count: int) -> NDArray[np.float64] | None:
    file, column = source_of(reference)
    name = f"{column}_before"
    return _by_person(files[file], name, count) if name in files[file] else None


def _by_person(columns: Columns, column: str, count: int) -> NDArray[np.float64]:
    """A column in the order of the users; 0 of those whom the query does not name."""
    found = np.zeros(count)
    found[columns["person"].astype(np.int64)] = columns[column]
    return found


def _observations(metric: Metric, files: dict[str, Columns]) -> Observations:
    found = files[source_of(metric.numerator)[0]]
    return Observations(
        metric=metric,
        user=found["person"].astype(np.int32),
        value=time_of(found["step"]),
        count=found["count"].astype(np.int64),
    )


def _cold(users: Users, replies: Columns) -> tuple[float | None, ...]:
    """What was found in the cache by arm in the minutes that metrics of the cache leave out."""
    arms, arm = len(users.arms), users.arm[replies["person"].astype(np.int64)]
    hit = np.bincount(arm, weights=replies["cold_hit_tokens"], minlength=arms)
    prompt = np.bincount(arm, weights=replies["cold_prompt_tokens"], minlength=arms)
    return tuple(float(hit[at] / prompt[at]) if prompt[at] else None for at in range(arms))
