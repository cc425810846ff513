"""What is stored of an experiment: its arms, whom it takes, and what happened to it.

Values only; owns no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec

State = Literal["draft", "running", "stopped", "shipped", "withdrawn"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How an experiment is judged.

    `primary` are the metrics that decide. `minimum_effect` is the smallest change worth finding, as a
    share of the control arm's value. `looks`: it is judged at any time, or once, after its `days`; at
    any time by bounds that are narrowest where all arms together have `users`.
    Replies of the first `warm_up_minutes` say nothing of the cache:
    it is cold for what is new. `before_days` is how far back the past of a user is looked at.
    `differs_when_cut`: the prompts of the arms are the same until messages are cut.
    `differs_when_opened`: their greetings are not, which a user sees before anything is sent.
    """

    primary: tuple[str, ...] = ()
    minimum_effect: float = 0.05
    looks: Literal["any", "planned"] = "any"
    users: int = 2_000
    warm_up_minutes: int = 10
    before_days: int = 14
    days: int = 14
    differs_when_cut: bool = False
    differs_when_opened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm: its share of the users that are let in, and the version that their conversations get.

    New conversations of a paused arm are made as if there were no experiment, those of testers too.
    """

    name: str
    share: float
    version: str
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment on the versions of one character; the first arm is the control.

    [range_start, range_end) is its part of the layer, of whose users a share `coverage` is let in, from
    its start on. `overrides` are users with a fixed arm, who are not judged by: `tenant/user`, or the
    tenant where its application tells no users. `excludes` names experiments whose users are left out.
    """

    name: str
    character: str
    hypothesis: str
    layer: str
    salt: str
    range_start: float
    range_end: float
    coverage: float
    excludes: tuple[str, ...]
    overrides: Mapping[str, str]
    options: Options
    arms: tuple[Arm, ...]
    state: State
    created_at: datetime
    started_at: datetime | None = None
    stopped_at: datetime | None = None

    @property
    def is_running(self) -> bool:
        """Whether new conversations are opened in it."""
        return self.state == "running"

    def arm(self, name: str) -> Arm | None:
        """The arm of this name."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEvent:
    """Something that was done to an experiment. `arm` is the one that was paused or shipped."""

    experiment: str
    kind: str
    arm: str | None
    author: str
    message: str
    has_report: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedArm:
    """An arm that was shipped: its version became `production`, with the experiment's report."""

    experiment: str
    arm: str
    version: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCounts:
    """Conversations opened in an arm, how many of them had a prompt that differs, the users who count in
    a report, and the conversations with such a prompt that were deleted. Without testers."""

    arm: str
    conversations: int
    exposed: int
    users: int
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Users of an experiment whom no report counts: in two arms, and testers."""

    crossed: int
    testers: int


_OPTIONS = msgspec.json.Decoder(Options)
_OVERRIDES = msgspec.json.Decoder(dict[str, str])


def create_arguments(experiment: Experiment, author: str, message: str) -> tuple[object, ...]:
    """The parameters of the query `create_experiment`, in its order."""
    return (
        *(experiment.name, experiment.character, experiment.hypothesis, experiment.layer),
        *(experiment.salt, experiment.range_start, experiment.range_end, experiment.coverage),
        list(experiment.excludes),
        msgspec.json.encode(dict(experiment.overrides)).decode(),
        msgspec.json.encode(experiment.options).decode(),
        [arm.name for arm in experiment.arms],
        [arm.share for arm in experiment.arms],
        [arm.version for arm in experiment.arms],
        *(author, message),
    )


def read_experiments(rows: Iterable[asyncpg.Record]) -> tuple[Experiment, ...]:
    """Rows of the query `experiments`, one an arm, as values."""
    by_name: dict[str, list[asyncpg.Record]] = {}
    for row in rows:
        by_name.setdefault(row["experiment"], []).append(row)
    return tuple(_read_experiment(arms) for arms in by_name.values())


def _read_experiment(rows: list[asyncpg.Record]) -> Experiment:
    row = rows[0]
    return Experiment(
        name=row["experiment"],
        character=row["character_id"],
        hypothesis=row["hypothesis"],
        layer=row["layer"],
        salt=row["salt"],
        range_start=row["range_start"],
        range_end=row["range_end"],
        coverage=row["coverage"],
        excludes=tuple(row["excludes"]),
        overrides=_OVERRIDES.decode(row["overrides"]),
        options=_OPTIONS.decode(row["options"]),
        arms=tuple(
            Arm(
                name=arm["arm"],
                share=arm["share"],
                version=arm["version"],
                paused_at=arm["paused_at"],
            )
            for arm in rows
        ),
        state=row["state"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        stopped_at=row["stopped_at"],
    )


def read_event(row: asyncpg.Record) -> ExperimentEvent:
    """A row of the query `experiment_events` as a value."""
    return ExperimentEvent(
        experiment=row["experiment"],
        kind=row["kind"],
        arm=row["arm"],
        author=row["author"],
        message=row["message"],
        has_report=row["has_report"],
        at=row["at"],
    )
