"""Experiments as they might be measured: drawn users, metrics of every shape, planted effects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from appliance.experiment.findings import Plan
from appliance.experiment.metric import Direction, Group, Metric, Shape
from appliance.experiment.report.subject import ReportArm, Subject
from appliance.experiment.samples import Measured, Observations, Sums, Users, steps_of, time_of

MESSAGES = Metric(
    name="messages_sent",
    group=Group.ENGAGEMENT,
    title="Messages sent",
    unit="messages a user",
    shape=Shape.MEAN,
    direction=Direction.UP,
    numerator="replies.sent",
    guardrail=0.05,
)
MINUTES = Metric(
    name="time_spent",
    group=Group.ENGAGEMENT,
    title="Engaged minutes",
    unit="minutes a user",
    shape=Shape.MEAN,
    direction=Direction.UP,
    numerator="activity.minutes",
)
REGENERATIONS = Metric(
    name="regenerations",
    title="Regenerations a message",
    unit="share",
    shape=Shape.RATIO,
    direction=Direction.DOWN,
    numerator="replies.regenerated",
    denominator="replies.sent",
    guardrail=0.2,
    group=Group.QUALITY,
)
ERRORS = Metric(
    name="errors",
    title="Replies that failed",
    unit="share",
    shape=Shape.RATIO,
    direction=Direction.DOWN,
    numerator="replies.failed",
    denominator="replies.sent",
    guardrail=0.2,
    group=Group.QUALITY,
)
HITS = Metric(
    name="hit_ratio",
    title="Prompt tokens found in the cache",
    unit="share",
    shape=Shape.RATIO,
    direction=Direction.UP,
    numerator="replies.hit",
    denominator="replies.prompt",
    guardrail=0.05,
    group=Group.COST,
)
COMPUTED = Metric(
    name="computed_tokens",
    title="Prompt tokens computed a reply",
    unit="tokens",
    shape=Shape.RATIO,
    direction=Direction.DOWN,
    numerator="replies.computed",
    denominator="replies.sent",
    guardrail=0.10,
    group=Group.COST,
)
TTFT = Metric(
    name="ttft_p50",
    title="Time to first token, median",
    unit="ms",
    shape=Shape.QUANTILE,
    direction=Direction.DOWN,
    numerator="ttft",
    quantile=0.5,
    guardrail=0.10,
    group=Group.SPEED,
)
TAIL = Metric(
    name="ttft_p95",
    title="Time to first token, 95 of 100",
    unit="ms",
    shape=Shape.QUANTILE,
    direction=Direction.DOWN,
    numerator="ttft",
    quantile=0.95,
    guardrail=0.20,
    group=Group.SPEED,
)

PLAN = Plan(deciding=("messages_sent",), hours=14 * 24.0)


def measured(
    *,
    users: int = 6_000,
    shares: tuple[float, ...] = (0.5, 0.5),
    messages: float = 0.0,
    hits: float = 0.0,
    ttft: float = 0.0,
    hours: float = 9 * 24.0,
    seed: int = 7,
) -> Measured:
    """An experiment whose later arms have the given relative effects; heavy users, a past, a warm-up."""
    rng = np.random.default_rng(seed)
    arm = rng.choice(len(shares), users, p=shares).astype(np.int16)
    treated = arm > 0
    rate = 2 + rng.gamma(0.8, 14.0, users)
    before = rng.poisson(rate * rng.gamma(4, 0.25, users)).astype(float)
    sent = (1 + rng.poisson(rate * (1 + messages * treated))).astype(np.float64)
    prompt = sent * rng.gamma(9, 90, users)
    hit = prompt * np.clip(rng.normal(0.9, 0.04, users) * (1 + hits * treated), 0, 1)
    regenerated = rng.binomial(sent.astype(int), 0.06).astype(float)
    minutes = sent * rng.gamma(6, 0.2, users)
    level = rng.normal(0, 0.25, users)
    seen = np.minimum(sent.astype(int), 20)
    user = np.repeat(np.arange(users, dtype=np.int32), seen)
    value = 180 * np.exp(level[user] + rng.normal(0, 0.5, len(user))) * (1 + ttft * treated[user])
    value = time_of(steps_of(value))
    ones = np.ones(users)
    observed: dict[str, Any] = {
        "user": user,
        "value": value,
        "count": np.ones(len(user), dtype=np.int64),
    }
    return Measured(
        users=Users(
            arms=("today", "warmer", "shorter", "longer")[: len(shares)],
            shares=shares,
            arm=arm,
            exposed_at=rng.random(users) * hours * 3600,
            paused_at=(np.inf,) * len(shares),
            crossed=3,
        ),
        sums=(
            Sums(
                metric=MESSAGES,
                numerator=sent,
                denominator=ones,
                before=before,
                before_denominator=ones,
            ),
            Sums(metric=MINUTES, numerator=minutes, denominator=ones),
            Sums(metric=REGENERATIONS, numerator=regenerated, denominator=sent),
            Sums(metric=ERRORS, numerator=np.zeros(users), denominator=sent),
            Sums(metric=HITS, numerator=hit, denominator=prompt),
            Sums(metric=COMPUTED, numerator=prompt - hit, denominator=sent),
        ),
        observations=(Observations(metric=TTFT, **observed), Observations(metric=TAIL, **observed)),
        hours=hours,
        warm_up_minutes=10,
        warm_up_hit_ratio=(0.87, 0.31, 0.3, None)[: len(shares)],
    )


def subject(*, arms: tuple[str, ...] = ("today", "warmer"), **changes: object) -> Subject:
    """What the report of such an experiment is headed by."""
    told: dict[str, object] = {
        "name": "warmer-greeting",
        "character": "assistant",
        "hypothesis": "A greeting that asks a question back makes people write more.",
        "state": "running",
        "arms": tuple(
            ReportArm(name=arm, version=f"3f9c21{place}", share=1 / len(arms))
            for place, arm in enumerate(arms)
        ),
        "looked_at": datetime(2026, 3, 12, 9, 30, tzinfo=UTC),
        "started_at": datetime(2026, 3, 3, 9, 0, tzinfo=UTC),
    }
    return Subject(**(told | changes))  # type: ignore[arg-type]
