"""Measures an experiment: runs the metrics' queries over one moment of the ledger.

Owns the transaction and the order of rows. Never: judges what it finds, or keeps anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from uuid import uuid4

import numpy as np

from appliance.errors import InvalidRequest
from appliance.experiment.columns import Columns, read_columns
from appliance.experiment.ends import ends_of
from appliance.experiment.figures import cold_hit_ratio, observations_of, sums_of
from appliance.experiment.metric import Shape
from appliance.experiment.metric_files import REPLIES, Metrics
from appliance.experiment.samples import Measured, Users
from appliance.named_sql import read_queries
from appliance.store.experiment_records import Arm, Experiment
from appliance.store.experiments import store_draft
from appliance.store.pool import Connection, Pool, acquired

QUERIES = read_queries("appliance.experiment", "measuring")
TIMEOUT_S = 600.0
"""How long all queries of a report may take together."""

MARGIN_S = 10.0
"""How much longer a server is waited for that does not end a query whose time is up."""


class NobodyYet(InvalidRequest):
    """There is nobody to measure, which is no fault of anything."""


async def measure(pool: Pool, experiment: Experiment, metrics: Metrics) -> Measured:
    """All figures of an experiment that has started; of arms that are judged or watched until another
    time than the rest (`ends_of`), as they were then.

    Raises NobodyYet for one that has not started, and when nobody is in it; InvalidRequest for a metric's
    query that is at fault; TimeoutError.
    """
    if experiment.started_at is None:
        why = "was withdrawn as a draft" if experiment.state == "withdrawn" else "has not started"
        raise NobodyYet(f"{experiment.name} {why}: there is nothing to measure")
    async with (
        asyncio.timeout(TIMEOUT_S + MARGIN_S),
        acquired(pool) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        # All queries see the same rows, so that they number the users alike.
        reading = await _reading(connection, experiment)
        ends = ends_of(experiment, reading.now)
        latest = max(one.judged for one in ends)
        found = {at: await _at(reading, at, metrics) for at in {one.judged for one in ends}}
        if not found[latest].users.arm.size:
            raise NobodyYet(await _nobody(reading))
        guards = metrics.guarding()
        watched = {
            at: found[at] if at in found else await _at(reading, at, guards)
            for at in {one.watched for one in ends}
        }
    arms = [arm.name for arm in experiment.arms[1:]]
    return replace(
        found[latest],
        judged={arm: found[one.judged] for arm, one in zip(arms, ends, strict=True)},
        watched={arm: watched[one.watched] for arm, one in zip(arms, ends, strict=True)},
    )


async def measure_history(pool: Pool, draft: Experiment, metrics: Metrics) -> Measured:
    """What users of a draft's character did before it, which it is planned from: as if it had begun as
    long ago as it is to last, and all were in its control arm.

    The queries are those of any experiment, so the draft is stored for them, under a name of its own, in
    a transaction that is undone. Raises NobodyYet where nobody opened a chat, and as `measure` does.
    """
    unseen = replace(draft, name=f"plan-{uuid4().hex}")
    async with asyncio.timeout(TIMEOUT_S + MARGIN_S), acquired(pool) as connection:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        try:
            # Its arms would have to name versions that are stored; nobody has been in one.
            await store_draft(connection, replace(unseen, arms=()), author="plan", message="plan")
            await connection.execute(QUERIES["only_read"])
            reading = await _reading(connection, unseen)
            found = await _at(reading, reading.now, metrics)
        finally:
            await transaction.rollback()
    if not found.users.arm.size:
        raise NobodyYet(
            f"nobody opened a chat with {draft.character} in the last {draft.options.days} days: there "
            "is nothing to plan from"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A transaction in which an experiment is measured, `now` in the database, and until when it may
    take, on the event loop's clock."""

    connection: Connection
    experiment: Experiment
    now: datetime
    deadline: float

    async def columns(self, origin: str, sql: str) -> Columns:
        """What a query finds."""
        left = self.deadline - asyncio.get_running_loop().time()
        return await read_columns(
            self.connection, origin, sql, self.experiment.name, timeout_s=left
        )


async def _reading(connection: Connection, experiment: Experiment) -> _Reading:
    now = await connection.fetchval(QUERIES["settings"])
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    return _Reading(connection=connection, experiment=experiment, now=now, deadline=deadline)


async def _at(reading: _Reading, at: datetime, metrics: Metrics) -> Measured:
    """All figures of what came before a time."""
    connection, experiment = reading.connection, reading.experiment
    await connection.execute(QUERIES["look_at"], at)
    span = await connection.fetchrow(QUERIES["span"], experiment.name)
    assert span is not None
    users = await _users(reading)
    files = {name: await reading.columns(f"{name}.sql", sql) for name, sql in metrics.sql.items()}
    return Measured(
        users=users,
        sums=tuple(sums_of(metric, files, users) for metric in metrics.of(Shape.MEAN, Shape.RATIO)),
        observations=tuple(
            observations_of(metric, files, users) for metric in metrics.of(Shape.QUANTILE)
        ),
        hours=(span["ends"] - span["begins"]).total_seconds() / 3600,
        warm_up_minutes=experiment.options.warm_up_minutes,
        warm_up_hit_ratio=cold_hit_ratio(users, files[REPLIES]),
    )


async def _users(reading: _Reading) -> Users:
    connection, experiment = reading.connection, reading.experiment
    people = await reading.columns("people", QUERIES["people"])
    apart = await connection.fetchrow(QUERIES["apart"], experiment.name)
    assert apart is not None
    person = people["person"].astype(np.int64)
    deleted = {
        row["arm"]: (row["chats"], row["users"])
        for row in await connection.fetch(QUERIES["deletions"], experiment.name)
    }
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
        deleted=tuple(deleted.get(one.name, (0, 0)) for one in experiment.arms),
    )


async def _nobody(reading: _Reading) -> str:
    apart = await reading.connection.fetchrow(QUERIES["apart"], reading.experiment.name)
    assert apart is not None
    return (
        f"{reading.experiment.name}: nobody has had a prompt of it yet: "
        f"{apart['conversations']} conversations were opened in it, {apart['exposed']} had one, "
        f"{apart['testers']} users are there by an override, {apart['crossed']} in two arms"
    )


def _paused_s(experiment: Experiment, arm: Arm) -> float:
    if experiment.started_at is None or arm.paused_at is None:
        return inf
    return (arm.paused_at - experiment.started_at).total_seconds()
