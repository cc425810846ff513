"""A metric as it is declared: what it measures, in which unit, and which way is better.

Values only. Never: reads a database, or judges a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Shape(Enum):
    """How a metric of an arm comes of its users' figures."""

    MEAN = "mean"
    """The sum of the numerators over the number of users."""

    RATIO = "ratio"
    """The sum of the numerators over the sum of the denominators; a user is still the unit."""

    QUANTILE = "quantile"
    """The value below which a share of all observations lies; a user is still the unit."""


class Group(Enum):
    """What a metric is about: where a report tells it."""

    ENGAGEMENT = "engagement"
    QUALITY = "quality"
    SPEED = "speed"
    COST = "cost"


class Direction(Enum):
    """Which way is better."""

    UP = "up"
    DOWN = "down"
    NONE = "none"
    """Neither: it is shown, and never judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One declaration.

    `guardrail` is the largest harm that is put up with, as a share of the control arm's value (0.05: five
    per cent worse), None for a metric that guards nothing. `quantile` is between 0 and 1, of the shape
    QUANTILE alone. `numerator` and `denominator` say where the figures come from, as `file.column` of the
    queries that measure; only a RATIO has a denominator.
    """

    name: str
    title: str
    unit: str
    shape: Shape
    direction: Direction
    group: Group
    numerator: str
    denominator: str | None = None
    guardrail: float | None = None
    quantile: float | None = None
