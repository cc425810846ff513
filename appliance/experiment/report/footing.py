"""What a report rests on: users, the split, warm-up, levels, the past. Leaves no doubt out."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.experiment.comparing import USERS_MIN
from appliance.experiment.findings import Analysis, Finding
from appliance.experiment.report.markup import Markup, tag
from appliance.experiment.report.numbers import amount, hours, per_cent
from appliance.experiment.report.sentences import deletions
from appliance.experiment.report.subject import Subject
from appliance.experiment.stats.looks import Looks
from appliance.experiment.stats.sample_ratio import ALARM_BELOW


def footing(subject: Subject, analysis: Analysis) -> Markup:
    """The last part of a report."""
    rows: list[Markup] = []
    for term, told in _told(subject, analysis):
        rows += [tag("dt", term), tag("dd", told)]
    return tag("section", tag("h2", "What this rests on"), tag("dl", *rows))


def _told(subject: Subject, analysis: Analysis) -> Iterator[tuple[str, str]]:
    ratio = analysis.sample_ratio
    yield (
        "Users by arm",
        "; ".join(
            f"{arm} {count:,} (expected {expected:,.0f})"
            for arm, count, expected in zip(
                analysis.arms, ratio.counts, ratio.expected, strict=True
            )
        ),
    )
    yield (
        "Sample ratio",
        f"p = {ratio.p_value:.2g}: "
        + (
            f"below {ALARM_BELOW}, chance does not explain the split. Look for prompts that fail, "
            "replies that are lost, or users that are known in one arm only."
            if ratio.alarms
            else f"fine; it alarms below {ALARM_BELOW}."
        ),
    )
    yield (
        "Users in two arms",
        f"{analysis.crossed:,}, left out of every figure." if analysis.crossed else "none",
    )
    if analysis.deleted is not None and any(analysis.deleted.chats):
        yield "Deleted chats", f"{deletions(analysis, analysis.deleted)}. They are in no figure."
    yield (
        "What is counted",
        "Engagement: all that users do, in any chat, from their first prompt that differs on. Quality, "
        "speed and cost: replies in chats of the experiment, by the version of the arm, from then on.",
    )
    if analysis.warm_up_minutes:
        yield "Warm-up", _warm_up(analysis)
    yield "Intervals", _intervals(analysis)
    for item in (item for result in analysis.results for item in result.findings if item.decides):
        if item.users_needed is not None:
            yield f"{item.metric.title}, {item.arm}", _users_needed(item, analysis, subject)
    kept = [
        f"{item.metric.title} {per_cent(item.variance_cut)}"
        for result in analysis.results[:1]
        for item in result.findings
        if item.variance_cut
    ]
    yield (
        "What users did before",
        "cuts the variance (CUPED): " + ", ".join(kept) + "."
        if kept
        else "is not known, or foretells nothing: no variance is cut.",
    )
    yield (
        "Latency",
        "Arms share one GPU and one cache: what slows one slows the other, so a difference seen here is "
        "smaller than the one there would be with the arm alone.",
    )
    for arm, told in subject.shipping:
        yield f"Shipping {arm}", told


def _warm_up(analysis: Analysis) -> str:
    found = ", ".join(
        f"{arm} {'no reply' if ratio is None else amount(ratio, 'share')}"
        for arm, ratio in zip(analysis.arms, analysis.warm_up_hit_ratio, strict=False)
    )
    return (
        f"Metrics of the cache leave out each arm's first {hours(analysis.warm_up_minutes / 60)} "
        "with users, when nothing of a new version is cached. Found in the cache then: "
        f"{found or 'not measured'}."
    )


def _users_needed(item: Finding, analysis: Analysis, subject: Subject) -> str:
    """How long until the smallest change worth finding would be found."""
    assert item.users_needed is not None
    effect, left = per_cent(analysis.plan.minimum_effect), item.users_needed - analysis.users
    told = f"{item.users_needed:,} users find a change of {effect} in four of five experiments"
    if left <= 0:
        return f"{told}: they are there."
    is_over = subject.stopped_at is not None or any(
        arm.paused_at is not None
        for arm in subject.arms
        if arm.name in (item.arm, analysis.arms[0])
    )
    if is_over or not analysis.users or analysis.hours <= 0:
        return f"{told}."
    return f"{told}: {hours(left / analysis.users * analysis.hours)} more, as users come now."


def _intervals(analysis: Analysis) -> str:
    if analysis.plan.looks is Looks.PLANNED:
        how = (
            "are for one look at the planned end, where a user is the unit (delta method, Welch's t); "
            "what comes after it does not count"
        )
    else:
        how = "hold at every look (asymptotic confidence sequences), with the user as the unit"
    sure = per_cent(1 - analysis.plan.alpha)
    return (
        f"They {how}. {sure} for all metrics that decide together; of the other metrics that are told as "
        f"changed, at most {per_cent(analysis.plan.alpha)} are false on average. Arms below "
        f"{USERS_MIN} users are not judged. Guardrails go by {sure} at every look."
    )
