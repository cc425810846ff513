"""An analysis in sentences: did it help, how sure are we, what does it cost. Computes nothing.

Owns that the three answers, and the numbers beside them, say one thing.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.experiment.comparing import USERS_MIN
from appliance.experiment.findings import (
    DECISIVE,
    Analysis,
    ArmResult,
    Deleted,
    Finding,
    Reading,
    Verdict,
)
from appliance.experiment.metric import Group
from appliance.experiment.report.numbers import hours, per_cent
from appliance.experiment.report.sentences import (
    breach,
    deletions,
    detectable,
    harm,
    interval,
    sentence,
)
from appliance.experiment.report.subject import Subject
from appliance.experiment.stats.guardrail import Guard
from appliance.experiment.stats.looks import Looks

TOLD_MAX = 2
"""Sentences of one kind in an answer; the tables have them all."""

VERY_SURE = 0.001

UNJUDGED = (Reading.TOO_EARLY, Reading.NO_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A short answer, what it rests on, and whether it is good news (True), bad (False) or neither."""

    short: str
    told: tuple[str, ...]
    is_good: bool | None = None


def did_it_help(result: ArmResult, analysis: Analysis, subject: Subject) -> Answer:
    """The verdict, the guardrails that are worse, and the metrics that decide."""
    told = [
        *_some(
            [breach(one) for one in result.breached],
            "guardrail is breached",
            "guardrails are breached",
        ),
        *(sentence(one) for one in result.deciding if one not in result.breached),
        *_some(
            [harm(one) for one in _harmed(result)], "guardrail is worse", "guardrails are worse"
        ),
    ]
    ends = _end_of(result, subject)
    match result.verdict:
        case Verdict.VOID:
            return Answer(
                short="It cannot be said",
                told=(
                    "Users did not come to the arms in the planned shares, so who is missing is not "
                    "random and no comparison below can be trusted.",
                    *_some(
                        [breach(one) for one in result.breached],
                        "guardrail is breached",
                        "guardrails are breached",
                    ),
                ),
                is_good=False,
            )
        case Verdict.HARMS:
            gains = any(one.reading is Reading.BETTER for one in result.deciding)
            short = "Yes, but it harms" if gains else "No, it harms"
            return Answer(short=short, told=tuple(told), is_good=False)
        case Verdict.HELPS:
            return Answer(short="Yes", told=(*told, *_unknown(result)), is_good=True)
        case Verdict.MIXED:
            return Answer(short="Better and worse", told=tuple(told))
        case Verdict.CHANGED:
            return Answer(short="It changed, for better or worse", told=tuple(told))
        case Verdict.NO_DIFFERENCE:
            return Answer(short="No difference seen", told=(*told, *_detectable(result)))
        case Verdict.UNCLEAR:
            short = "Not known yet" if ends is None else "Not known"
            return Answer(short=short, told=(*told, *_given(ends), *_detectable(result)))
        case Verdict.TOO_EARLY:
            return Answer(
                short=_too_early(result, ends),
                told=(*told, *_waiting(result, analysis, ends)),
            )


def how_sure(result: ArmResult, analysis: Analysis) -> Answer:
    """The interval that the verdict rests on, the users behind it, and the split."""
    ratio = analysis.sample_ratio
    behind = (
        f"{result.users:,} users, {hours(result.hours)} of {hours(analysis.plan.hours)} planned."
    )
    gone = analysis.deleted
    missing = [] if gone is None or not gone.differs else [_missing(analysis, gone)]
    if result.verdict is Verdict.VOID:
        split = f"The split is wrong: p = {ratio.p_value:.1g} for {_split(analysis)}."
        return Answer(short="Not at all", told=(behind, split, *missing), is_good=False)
    first = result.rests_on
    if first is None or first.p_value is None:
        return Answer(short="Nothing to judge yet", told=(behind, *missing))
    if first.effect is not None and first.reading is Reading.TOO_EARLY:
        between = interval(first.effect, first.metric.unit, " and ")
        so_far = f"{first.metric.title}: between {between} so far."
        return Answer(short="Not sure yet", told=(so_far, behind, *missing))
    told = (_coverage(first), behind, *missing)
    if result.verdict in DECISIVE:
        return Answer(short="Very sure" if first.p_value < VERY_SURE else "Sure", told=told)
    smallest = analysis.plan.minimum_effect
    if result.verdict is Verdict.NO_DIFFERENCE and all(
        _is_small(item, smallest) for item in result.deciding
    ):
        effect = per_cent(analysis.plan.minimum_effect)
        return Answer(short=f"Sure that it is below {effect}", told=told)
    return Answer(short="Not sure", told=told)


def what_it_costs(result: ArmResult, analysis: Analysis, subject: Subject) -> Answer:
    """Changes of cost and speed, the sure ones first; of whom; and what shipping would cost the cache."""
    items = [item for item in result.findings if item.metric.group in (Group.COST, Group.SPEED)]
    worse = [item for item in items if item.reading is Reading.WORSE]
    better = [item for item in items if item.reading is Reading.BETTER]
    unsure = [item for item in items if item not in worse and item not in better]
    told = _some([sentence(item) for item in (*worse, *better, *unsure)], "below", "below")
    if items:
        told.append(_of_whom(analysis))
    shipping = subject.shipping_of(result.arm)
    if shipping is not None:
        told.append(shipping)
    if result.verdict is Verdict.VOID:
        return Answer(short="It cannot be said", told=tuple(told[-1:] if shipping else ()))
    if not items:
        return Answer(short="Not measured", told=("No metric of speed or cost is declared.", *told))
    if worse or better:
        ways = (
            _way(worse, better, Group.COST, "more", "less"),
            _way(worse, better, Group.SPEED, "slower", "faster"),
        )
        short = ", ".join(way for way in ways if way is not None).capitalize()
        short += _not_measured(items)
        is_good = None if worse and better else bool(better)
        return Answer(short=short, told=tuple(told), is_good=is_good)
    if all(item.reading in UNJUDGED for item in items):
        is_early = any(item.reading is Reading.TOO_EARLY for item in items)
        return Answer(short="Too early to say" if is_early else "Not measured", told=tuple(told))
    return Answer(short="No change seen" + _not_measured(items), told=tuple(told))


def _not_measured(items: list[Finding]) -> str:
    """Which of cost and speed nothing is known of, where something is of the other."""
    unknown = [
        group.value
        for group in (Group.COST, Group.SPEED)
        if all(item.reading in UNJUDGED for item in items if item.metric.group is group)
        and any(item.metric.group is group for item in items)
    ]
    return f"; {' and '.join(unknown)} not measured yet" if unknown else ""


def _way(
    worse: list[Finding], better: list[Finding], group: Group, bad: str, good: str
) -> str | None:
    """How a group moved, in a word or two."""
    ways = [
        word
        for word, items in ((bad, worse), (good, better))
        if any(item.metric.group is group for item in items)
    ]
    return " and ".join(ways) or None


def _of_whom(analysis: Analysis) -> str:
    told = "Of replies in chats of the experiment, from each user's first prompt that differs on"
    if analysis.warm_up_minutes:
        told += (
            f"; those of the cache without an arm's first {hours(analysis.warm_up_minutes / 60)}"
        )
    return f"{told}."


def _harmed(result: ArmResult) -> list[Finding]:
    """Guardrails that are worse by less than is put up with, and are not told as deciding metrics."""
    return [
        item
        for item in result.findings
        if item.guard is Guard.HARMED and not (item.decides and item.reading is Reading.WORSE)
    ]


def _unknown(result: ArmResult) -> list[str]:
    """Guardrails of which nothing is known yet."""
    titles = [
        item.metric.title
        for item in result.findings
        if item.metric.guardrail is not None and item.guard in (None, Guard.OPEN)
    ]
    if not titles:
        return []
    return [
        f"Not known of {'a guardrail' if len(titles) == 1 else f'{len(titles)} guardrails'} yet."
    ]


def _some(sentences: list[str], one: str, more: str) -> list[str]:
    """The first few, and how many more there are."""
    left = len(sentences) - TOLD_MAX
    told = f"{left} more {one if left == 1 else more}."
    return sentences if left <= 0 else [*sentences[:TOLD_MAX], told]


def _given(sentence: str | None) -> list[str]:
    return [] if sentence is None else [sentence]


def _end_of(result: ArmResult, subject: Subject) -> str | None:
    """Why nothing more will be known of an arm; None while users come."""
    control = subject.arms[0].name
    for arm in subject.arms:
        if arm.paused_at is not None and arm.name in (result.arm, control):
            return f"Arm {arm.name} is paused: no more users are compared."
    return None if subject.stopped_at is None else "It has ended: no more users come."


def _too_early(result: ArmResult, ends: str | None) -> str:
    if not any(item.reading is Reading.TOO_EARLY for item in result.deciding):
        return "Nothing to judge by" if ends is not None else "Nothing to judge by yet"
    return "Too early to say" if ends is None else "It cannot be said"


def _waiting(result: ArmResult, analysis: Analysis, ends: str | None) -> list[str]:
    """What an answer waits for."""
    told = [] if result.deciding else ["No metric that decides was measured."]
    if analysis.users == 0:
        told.append("Nobody has been exposed yet.")
    elif ends is not None:
        told.append(ends)
    elif any(item.reading is Reading.TOO_EARLY for item in result.deciding):
        told.append(
            f"This experiment is judged once, after {hours(analysis.plan.hours)}."
            if analysis.plan.looks is Looks.PLANNED and result.hours < analysis.plan.hours
            else f"Below {USERS_MIN} users an arm no interval is to be trusted."
        )
    return told


def _is_small(item: Finding, minimum: float) -> bool:
    """Whether the whole interval is nearer to nothing than the smallest change worth finding."""
    effect = item.relative
    return effect is not None and -minimum < effect.low and effect.high < minimum


def _coverage(finding: Finding) -> str:
    assert finding.level is not None
    assert finding.effect is not None
    how = "at this planned look" if finding.looks is Looks.PLANNED else "however often one looks"
    between = interval(finding.effect, finding.metric.unit, " and ")
    sure = per_cent(1 - finding.level)
    return f"{finding.metric.title}: the true change lies between {between}; {sure} sure, {how}."


def _missing(analysis: Analysis, gone: Deleted) -> str:
    return (
        "Beware: users delete their chats more often in one arm than in another, and what is deleted is "
        f"in no figure: {deletions(analysis, gone)}."
    )


def _split(analysis: Analysis) -> str:
    return " to ".join(f"{count:,}" for count in analysis.counts)


def _detectable(result: ArmResult) -> list[str]:
    return [
        f"{item.metric.title}: a change of {told} would probably have shown by now."
        for item in result.deciding
        if (told := detectable(item)) is not None
    ]
