"""What one metric shows of one arm beside the control: values only, as a report tells them.

Never: computes them (`analysis.py`), or puts them into words (`report/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from appliance.experiment.metric import Metric
from appliance.experiment.stats.guardrail import Guard
from appliance.experiment.stats.looks import Looks
from appliance.experiment.stats.sample_ratio import ALARM_BELOW, SampleRatio
from appliance.store.experiment_records import Options

HOURS_A_DAY = 24.0


class Reading(Enum):
    """What may be said of a metric after this look."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    """It moved, and neither way is better."""

    UNCLEAR = "unclear"
    """The interval holds zero."""

    TOO_EARLY = "too_early"
    """Too few users for any interval to be trusted, or a look before the one that was planned."""

    NO_DATA = "no_data"
    """Nothing was measured; `Finding.lacks` says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change with its interval: as a share of the control's value, or of the value itself."""

    change: float
    low: float
    high: float
    is_share: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One metric, one arm against the control.

    `control` and `value` are what was measured; `absolute` and `relative` may differ from their
    difference, because what the users' past foretold is taken off. `relative` is None where a value is
    not clearly above zero: a change is no share of it. `level` is the alpha its interval is for, `looks`
    when one may look at it, `p_value` its own. `variance_kept` is None without a past. `detectable` is
    the rise that four of five such experiments would show, on the scale of `effect`; `users_needed` the
    users of all arms with whom they would show `Plan.minimum_effect`. `guard` is how its guardrail
    stands, by `guarded`, an interval that holds at every look.
    """

    metric: Metric
    arm: str
    decides: bool
    reading: Reading
    lacks: str | None = None
    control: float | None = None
    value: float | None = None
    absolute: Effect | None = None
    relative: Effect | None = None
    level: float | None = None
    looks: Looks | None = None
    p_value: float | None = None
    variance_kept: float | None = None
    detectable: float | None = None
    users_needed: int | None = None
    guard: Guard | None = None
    guarded: Effect | None = None

    @property
    def variance_cut(self) -> float | None:
        """The share that the past takes off, where it is worth telling."""
        kept = self.variance_kept
        return None if kept is None or kept >= 0.995 else 1 - kept

    @property
    def effect(self) -> Effect | None:
        """The change as it is told and judged."""
        return self.absolute if self.relative is None else self.relative


class Verdict(Enum):
    """What may be said of an arm after this look; the first that holds."""

    VOID = "void"
    """Users came in other shares than they were to, so no comparison is worth anything."""

    HARMS = "harms"
    """A guardrail is breached, or a metric that decides is worse."""

    TOO_EARLY = "too_early"
    MIXED = "mixed"
    """A metric that decides is better; another is worse, or a guardrail is touched."""

    HELPS = "helps"
    CHANGED = "changed"
    """A metric that decides moved, and neither way is better."""

    NO_DIFFERENCE = "no_difference"
    """The planned time is over, and no metric that decides has moved."""

    UNCLEAR = "unclear"
    """The planned time is not over, and no metric that decides has moved yet."""


DECISIVE = {
    Verdict.HARMS: Reading.WORSE,
    Verdict.HELPS: Reading.BETTER,
    Verdict.MIXED: Reading.BETTER,
    Verdict.CHANGED: Reading.CHANGED,
}
"""What a metric that decides must read for a verdict to rest on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """An arm other than the control, with all its findings, the deciding ones first.

    It is judged by `users` of both, after `hours`.
    """

    arm: str
    verdict: Verdict
    users: int
    hours: float
    findings: tuple[Finding, ...]

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """Those of the metrics that decide."""
        return tuple(finding for finding in self.findings if finding.decides)

    @property
    def breached(self) -> tuple[Finding, ...]:
        """The guardrails for which the arm is to be paused."""
        return tuple(finding for finding in self.findings if finding.guard is Guard.BREACHED)

    @property
    def rests_on(self) -> Finding | None:
        """The finding that the verdict rests on: a breached guardrail, or the first that decides so."""
        wanted = DECISIVE.get(self.verdict)
        decisive = [one for one in self.deciding if wanted in (None, one.reading)]
        return next(iter((*self.breached, *decisive)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was fixed before the experiment began, and decides how it is judged.

    `deciding` names the metrics that decide. `hours` is how long it is meant to run. `users` of all arms
    is where the bounds for looks at any time are narrowest; with a tenth of them the bounds are a quarter
    wider, with a hundred times as many a fifth. `minimum_effect` is the smallest change worth finding.
    """

    deciding: tuple[str, ...]
    hours: float
    users: int = 2_000
    minimum_effect: float = 0.05
    looks: Looks = Looks.ANY
    alpha: float = 0.05

    @classmethod
    def of(cls, options: Options) -> Plan:
        """As an experiment was created."""
        return cls(
            deciding=options.primary,
            hours=options.days * HOURS_A_DAY,
            users=options.users,
            minimum_effect=options.minimum_effect,
            looks=Looks(options.looks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """Chats of the experiment that were deleted and are in no figure, by arm, and the `users` who did so.
    `p_value` is that of as many in each arm."""

    chats: tuple[int, ...]
    users: tuple[int, ...]
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether chance does not explain that one arm's users delete more: who is missing there is not
        random."""
        return self.p_value < ALARM_BELOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All that one look shows.

    `counts` are users by arm, the control first; `hours` since the start. `warm_up_hit_ratio` by arm is
    the share of prompt tokens found in the cache in the first minutes, which metrics of the cache leave
    out. `deleted` is None where it was not counted.
    """

    plan: Plan
    arms: tuple[str, ...]
    counts: tuple[int, ...]
    hours: float
    sample_ratio: SampleRatio
    crossed: int
    results: tuple[ArmResult, ...]
    warm_up_minutes: int
    warm_up_hit_ratio: tuple[float | None, ...]
    deleted: Deleted | None = None

    @property
    def users(self) -> int:
        """Users of all arms."""
        return sum(self.counts)
