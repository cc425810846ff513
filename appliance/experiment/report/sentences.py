"""One finding in words: its change, its interval, its guardrail. Never: an answer of a whole report."""

from __future__ import annotations

from appliance.experiment.findings import Analysis, Deleted, Effect, Finding, Reading
from appliance.experiment.metric import Direction
from appliance.experiment.report.numbers import (
    change,
    difference,
    difference_span,
    per_cent,
    span,
)
from appliance.experiment.stats.guardrail import Guard


def sentence(finding: Finding) -> str:
    """One finding: the metric, its change, and what may be said of it."""
    title = finding.metric.title
    if finding.effect is None:
        return f"{title}: {finding.lacks}."
    if finding.reading is Reading.UNCLEAR:
        return f"{title}: no change seen ({interval(finding.effect, finding.metric.unit)})."
    if finding.reading is Reading.TOO_EARLY:
        return f"{title}: {moved(finding)} so far."
    better = {Reading.BETTER: ", better", Reading.WORSE: ", worse"}.get(finding.reading, "")
    return f"{title}: {moved(finding)}{better}."


def moved(finding: Finding) -> str:
    """A change with its interval."""
    if finding.effect is None:
        return finding.lacks or "not measured"
    return _moved(finding.effect, finding.metric.unit)


def guarded(finding: Finding) -> str:
    """The change that a guardrail goes by, with its interval, which holds at every look."""
    if finding.guarded is None:
        return finding.lacks or "too early"
    return _moved(finding.guarded, finding.metric.unit)


def changed(effect: Effect, unit: str) -> str:
    """A change without its interval."""
    return change(effect.change) if effect.is_share else difference(effect.change, unit)


def interval(effect: Effect, unit: str, between: str = " to ") -> str:
    """The two ends."""
    if effect.is_share:
        return span(effect.low, effect.high, between)
    return difference_span(effect.low, effect.high, unit, between)


def _moved(effect: Effect, unit: str) -> str:
    return f"{changed(effect, unit)} ({interval(effect, unit)})"


def detectable(finding: Finding) -> str | None:
    """The rise that would probably have shown; None where it is as large as the value itself."""
    if finding.detectable is None or finding.effect is None:
        return None
    if not finding.effect.is_share:
        return difference(finding.detectable, finding.metric.unit).removeprefix("+")
    return per_cent(finding.detectable) if finding.detectable < 1 else None


def reading_word(finding: Finding) -> str:
    """The reading in a word or two, for a table."""
    if finding.reading is Reading.NO_DATA:
        return finding.lacks or "no data"
    return {
        Reading.BETTER: "better",
        Reading.WORSE: "worse",
        Reading.CHANGED: "changed",
        Reading.UNCLEAR: "no change seen",
        Reading.TOO_EARLY: "too early",
    }[finding.reading]


def guard_word(guard: Guard) -> str:
    """How a guardrail stands."""
    return {
        Guard.SAFE: "safe",
        Guard.OPEN: "not known yet",
        Guard.HARMED: "worse, within reason so far",
        Guard.BREACHED: "breached",
    }[guard]


def guard_limit(finding: Finding) -> str:
    """The harm that a guardrail puts up with."""
    margin = finding.metric.guardrail
    assert margin is not None
    way = "rise" if finding.metric.direction is Direction.DOWN else "fall"
    return f"a {way} of up to {per_cent(margin)}"


def breach(finding: Finding) -> str:
    """A guardrail that is breached, and what is allowed."""
    return f"{finding.metric.title}: {guarded(finding)}; {guard_limit(finding)} is allowed."


def harm(finding: Finding) -> str:
    """A guardrail that is worse by less than is put up with."""
    return (
        f"{finding.metric.title}: {guarded(finding)}, worse; {guard_limit(finding)} is put up with."
    )


def deletions(analysis: Analysis, deleted: Deleted) -> str:
    """Chats that were deleted, by arm."""
    told = ", ".join(
        f"{arm} {chats:,} (by {users:,} of its users)"
        for arm, chats, users in zip(analysis.arms, deleted.chats, deleted.users, strict=True)
    )
    return f"{told}; p = {deleted.p_value:.2g} for as many users in each arm"
