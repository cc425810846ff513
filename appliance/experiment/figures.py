"""Each metric's figures out of what the queries found: the rows of users put in order, and checked.

A query may be an operator's: what does not fit is told with its file and column. Never: asks anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.errors import InvalidRequest
from appliance.experiment.columns import Columns
from appliance.experiment.metric import Metric
from appliance.experiment.metric_files import source_of
from appliance.experiment.samples import STEP, Observations, Sums, Users, time_of

STEPS_MAX = 30 / STEP
"""Three centuries, in milliseconds."""

Files = Mapping[str, Columns]


def sums_of(metric: Metric, files: Files, users: Users) -> Sums:
    """Of the shapes MEAN and RATIO; raises InvalidRequest."""
    numerator = _sum(metric.numerator, metric, files, users)
    before = _past(metric.numerator, metric, files, users)
    if metric.denominator is None:
        ones = np.ones_like(numerator)
        return Sums(
            metric=metric,
            numerator=numerator,
            denominator=ones,
            before=before,
            before_denominator=None if before is None else ones,
        )
    past = _past(metric.denominator, metric, files, users)
    has_past = before is not None and past is not None
    denominator = _sum(metric.denominator, metric, files, users)
    for name, figures in (
        (metric.denominator, denominator),
        (f"{metric.denominator}_before", past),
    ):
        _refuse_negative(name, metric, figures)
    return Sums(
        metric=metric,
        numerator=numerator,
        denominator=denominator,
        before=before if has_past else None,
        before_denominator=past if has_past else None,
    )


def observations_of(metric: Metric, files: Files, users: Users) -> Observations:
    """Of the shape QUANTILE; raises InvalidRequest."""
    file, _ = source_of(metric.numerator)
    found = files[file]
    for column, highest in (("step", STEPS_MAX), ("count", np.inf)):
        if column not in found:
            raise InvalidRequest(f"{metric.name}: {file}.sql has no column {column!r}")
        wrong = (found[column] < 0) | (found[column] > highest) | (found[column] % 1 != 0)
        if wrong.any():
            raise InvalidRequest(
                f"{file}.sql: a value of {column!r} is {found[column][wrong.argmax()]:g}: a whole number "
                f"of 0 or more{'' if highest == np.inf else f', at most {highest:g}, '} is wanted"
            )
    return Observations(
        metric=metric,
        user=_people(file, found, users).astype(np.int32),
        value=time_of(found["step"]),
        count=found["count"].astype(np.int64),
    )


def cold_hit_ratio(users: Users, replies: Columns) -> tuple[float | None, ...]:
    """What was found in the cache by arm in the minutes that metrics of the cache leave out."""
    arms, arm = len(users.arms), users.arm[replies["person"].astype(np.int64)]
    hit = np.bincount(arm, weights=replies["cold_hit_tokens"], minlength=arms)
    prompt = np.bincount(arm, weights=replies["cold_prompt_tokens"], minlength=arms)
    return tuple(float(hit[at] / prompt[at]) if prompt[at] else None for at in range(arms))


def _sum(reference: str, metric: Metric, files: Files, users: Users) -> NDArray[np.float64]:
    """A column in the order of the users; 0 of those whom the query does not name."""
    file, column = source_of(reference)
    if column not in files[file]:
        raise InvalidRequest(f"{metric.name}: {file}.sql has no column {column!r}")
    person = _people(file, files[file], users)
    rows = np.bincount(person, minlength=len(users.arm))
    if (rows > 1).any():
        raise InvalidRequest(
            f"{file}.sql: {rows.max()} rows are of person {rows.argmax()}: GROUP BY person"
        )
    found = np.zeros(len(users.arm))
    found[person] = files[file][column]
    return found


def _past(reference: str, metric: Metric, files: Files, users: Users) -> NDArray[np.float64] | None:
    file, column = source_of(reference)
    name = f"{column}_before"
    return _sum(f"{file}.{name}", metric, files, users) if name in files[file] else None


def _people(file: str, columns: Columns, users: Users) -> NDArray[np.int64]:
    person, count = columns["person"], len(users.arm)
    unknown = (person < 0) | (person >= count) | (person % 1 != 0)
    if unknown.any():
        raise InvalidRequest(
            f"{file}.sql: a value of 'person' is {person[unknown.argmax()]:g}, and "
            f"appliance.experiment_people($1) has 0 to {count - 1}"
        )
    return person.astype(np.int64)


def _refuse_negative(reference: str, metric: Metric, figures: NDArray[np.float64] | None) -> None:
    if figures is not None and (figures < 0).any():
        file, column = source_of(reference)
        raise InvalidRequest(
            f"{file}.sql: a value of {column!r} is {figures.min():g}: {metric.name} is a share of it, so "
            "it is never below 0"
        )
