"""An analysis in sentences: did it help, how sure are we, what does it cost. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.experiment.findings import Analysis, ArmResult, Finding, Reading, Verdict
from appliance.experiment.metric import Direction, Group
from appliance.experiment.report.numbers import change, hours, per_cent, signed_amount, span
from appliance.experiment.report.subject import Subject
from appliance.experiment.stats.guardrail import Guard
from appliance.experiment.stats.looks import Looks

TOLD_MAX = 2
"""Sentences of one kind in an answer; the tables have them all."""

VERY_SURE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A short answer, what it rests on, and whether it is good news (True), bad (False) or neither."""

    short: str
    told: tuple[str, ...]
    is_good: bool | None = None


def did_it_help(result: ArmResult, analysis: Analysis) -> Answer:
    """The verdict and the metrics that decide."""
    deciding = [finding for finding in result.findings if finding.decides]
    told = [sentence(finding) for finding in deciding if finding not in result.breached]
    told = [*map(_breach, result.breached[:TOLD_MAX]), *told]
    left = len(result.breached) - TOLD_MAX
    if left > 0:
        told.append(f"{left} more {'guardrail is' if left == 1 else 'guardrails are'} breached.")
    if not deciding:
        told.append("No metric that decides was measured.")
    match result.verdict:
        case Verdict.VOID:
            return Answer(
                short="It cannot be said",
                told=(
                    "Users did not come to the arms in the planned shares, so who is missing is not "
                    "random and no comparison below can be trusted.",
                ),
                is_good=False,
            )
        case Verdict.HARMS:
            return Answer(short="No, it harms", told=tuple(told), is_good=False)
        case Verdict.HELPS:
            return Answer(short="Yes", told=tuple(told), is_good=True)
        case Verdict.MIXED:
            return Answer(short="Better and worse", told=tuple(told))
        case Verdict.NO_DIFFERENCE:
            return Answer(short="No difference seen", told=(*told, *_detectable(deciding)))
        case Verdict.UNCLEAR:
            return Answer(short="Not known yet", told=(*told, *_detectable(deciding)))
        case Verdict.TOO_EARLY:
            waiting = _waiting(analysis) if deciding else []
            return Answer(short="Too early to say", told=(*told, *waiting))


def how_sure(result: ArmResult, analysis: Analysis) -> Answer:
    """The interval of the first metric that decides, the users behind it, and the split."""
    ratio = analysis.sample_ratio
    told = [
        f"{analysis.users:,} users, {hours(analysis.hours)} of {hours(analysis.plan.hours)} planned."
    ]
    if ratio.alarms:
        told.append(f"The split is wrong: p = {ratio.p_value:.1g} for {_split(analysis)}.")
        return Answer(short="Not at all", told=tuple(told), is_good=False)
    first = result.rests_on
    if first is None or first.p_value is None or first.level is None:
        return Answer(short="Nothing to judge yet", told=tuple(told))
    if first.reading is Reading.TOO_EARLY:
        told.insert(0, f"{first.metric.title}: between {_ends(first, ' and ')} so far.")
        return Answer(short="Not sure yet", told=tuple(told))
    told.insert(0, _coverage(first, analysis))
    if first.reading is Reading.UNCLEAR:
        short = "Not sure"
    else:
        short = "Very sure" if first.p_value < VERY_SURE else "Sure"
    return Answer(short=short, told=tuple(told))


def what_it_costs(result: ArmResult, subject: Subject) -> Answer:
    """Changes of speed and cost, the sure ones first, and what shipping would cost the cache."""
    costs = [item for item in result.findings if item.metric.group in (Group.COST, Group.SPEED)]
    sure = [item for item in costs if item.reading in (Reading.WORSE, Reading.BETTER)]
    worse = [item for item in sure if item.reading is Reading.WORSE]
    unsure = [item for item in costs if item not in sure]
    better = [item for item in sure if item not in worse]
    told = _some([sentence(item) for item in (*worse, *better, *unsure)])
    shipping = subject.shipping_of(result.arm)
    if shipping is not None:
        told.append(shipping)
    if not costs:
        return Answer(short="Not measured", told=("No metric of speed or cost is declared.", *told))
    if worse:
        return Answer(short="More", told=tuple(told), is_good=False)
    if sure:
        return Answer(short="Less", told=tuple(told), is_good=True)
    if all(item.reading in (Reading.TOO_EARLY, Reading.NO_DATA) for item in costs):
        return Answer(short="Too early to say", told=tuple(told))
    return Answer(short="No change seen", told=tuple(told))


def sentence(finding: Finding) -> str:
    """One finding: the metric, its change, and what may be said of it."""
    title = finding.metric.title
    if finding.reading is Reading.NO_DATA:
        return f"{title}: {finding.lacks}."
    if finding.reading is Reading.UNCLEAR:
        return f"{title}: no change seen ({_ends(finding)})."
    if finding.reading is Reading.TOO_EARLY:
        return f"{title}: {moved(finding)} so far."
    better = {Reading.BETTER: ", better", Reading.WORSE: ", worse"}.get(finding.reading, "")
    return f"{title}: {moved(finding)}{better}."


def moved(finding: Finding) -> str:
    """A change with its interval."""
    if finding.relative is not None:
        return f"{change(finding.relative.change)} ({_ends(finding)})"
    if finding.absolute is not None:
        return f"{signed_amount(finding.absolute.change, finding.metric.unit)} ({_ends(finding)})"
    return finding.lacks or "not measured"


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


def _ends(finding: Finding, between: str = " to ") -> str:
    if finding.relative is not None:
        return span(finding.relative.low, finding.relative.high).replace(" to ", between)
    effect = finding.absolute
    assert effect is not None
    unit = finding.metric.unit
    return f"{signed_amount(effect.low, unit)}{between}{signed_amount(effect.high, unit)}"


def _breach(finding: Finding) -> str:
    return f"{finding.metric.title}: {moved(finding)}; {guard_limit(finding)} is allowed."


def _some(sentences: list[str]) -> list[str]:
    """The first few, and how many more there are."""
    left = len(sentences) - TOLD_MAX
    return sentences if left <= 0 else [*sentences[:TOLD_MAX], f"{left} more below."]


def _coverage(finding: Finding, analysis: Analysis) -> str:
    assert finding.level is not None
    sure = per_cent(1 - finding.level)
    how = (
        "at this planned look"
        if analysis.plan.looks is Looks.PLANNED and analysis.hours >= analysis.plan.hours
        else "however often one looks"
    )
    between = _ends(finding, " and ")
    return f"{finding.metric.title}: the true change lies between {between}; {sure} sure, {how}."


def _split(analysis: Analysis) -> str:
    return " to ".join(f"{count:,}" for count in analysis.counts)


def _detectable(deciding: list[Finding]) -> list[str]:
    return [
        f"{item.metric.title}: a change of {per_cent(item.detectable)} would probably have shown by now."
        for item in deciding
        if item.detectable is not None and item.detectable < 1
    ]


def _waiting(analysis: Analysis) -> list[str]:
    if analysis.users == 0:
        return ["Nobody has been exposed yet."]
    if analysis.plan.looks is Looks.PLANNED and analysis.hours < analysis.plan.hours:
        return [f"This experiment is judged once, after {hours(analysis.plan.hours)}."]
    return ["There are too few users for an interval to be trusted."]
