"""A report as a page: the answers first, then every metric with its interval, then what they rest on.

Owns what stands where. Never: computes a figure, or words a sentence (`words.py`).
"""

from __future__ import annotations

from datetime import datetime

from appliance.experiment.findings import Analysis, ArmResult, Finding, Reading
from appliance.experiment.metric import Direction, Group
from appliance.experiment.report.footing import footing
from appliance.experiment.report.frame import framed
from appliance.experiment.report.interval_plot import axis, axis_end, interval_plot
from appliance.experiment.report.markup import Markup, tag, together
from appliance.experiment.report.numbers import amount, per_cent, unit_beside
from appliance.experiment.report.sentences import (
    changed,
    guard_limit,
    guard_word,
    guarded,
    reading_word,
)
from appliance.experiment.report.subject import Subject
from appliance.experiment.report.words import Answer, did_it_help, how_sure, what_it_costs
from appliance.experiment.stats.guardrail import Guard

GROUPS = {
    Group.ENGAGEMENT: "Engagement",
    Group.QUALITY: "Quality",
    Group.SPEED: "Speed",
    Group.COST: "Cost and cache",
}
_GUARD_TONES = {Guard.SAFE: "good", Guard.BREACHED: "bad", Guard.HARMED: "bad", Guard.OPEN: ""}


def report_page(subject: Subject, analysis: Analysis) -> str:
    """The HTML document; it names no address, so it can be mailed and read anywhere."""
    several = len(analysis.results) > 1
    return framed(
        f"{subject.name}: experiment report",
        _head(subject),
        *(tag("p", note, class_="notice") for note in subject.notes),
        *(_first_screen(result, analysis, subject, named=several) for result in analysis.results),
        *(_metrics(result, analysis, named=several) for result in analysis.results),
        *(_guardrails(result, named=several) for result in analysis.results),
        footing(subject, analysis),
    )


def _head(subject: Subject) -> Markup:
    arms = ", ".join(
        f"{arm.name} {per_cent(arm.share)} ({arm.version}{', paused' if arm.paused_at else ''})"
        for arm in subject.arms
    )
    return tag(
        "header",
        tag("h1", subject.name, tag("span", subject.state, class_="state")),
        tag("p", subject.hypothesis, class_="hypothesis"),
        tag(
            "p",
            f"{subject.character}: {arms}. Looked at {moment(subject.looked_at)}"
            + (f", started {moment(subject.started_at)}" if subject.started_at else "")
            + (f", stopped {moment(subject.stopped_at)}" if subject.stopped_at else "")
            + ".",
            class_="soft small",
        ),
    )


def _first_screen(
    result: ArmResult, analysis: Analysis, subject: Subject, *, named: bool
) -> Markup:
    answers = (
        _answer("Did it help?", did_it_help(result, analysis, subject)),
        _answer("How sure are we?", how_sure(result, analysis), _first_plot(result)),
        _answer("What does it cost?", what_it_costs(result, analysis, subject)),
    )
    return tag(
        "section",
        tag("h2", result.arm, class_="arm-name") if named else None,
        tag("div", *answers, class_="answers"),
        class_="first-screen",
    )


def _first_plot(result: ArmResult) -> Markup | None:
    """The interval that the answer rests on."""
    item = result.rests_on
    if item is None or item.relative is None:
        return None
    end = axis_end([item.relative])
    return together(
        interval_plot(item.relative, end, tone_of(item.reading), _signed_margin(item)), axis(end)
    )


def _answer(question: str, answer: Answer, plot: Markup | None = None) -> Markup:
    return tag(
        "div",
        tag("h3", question),
        tag("p", answer.short, class_="short"),
        plot,
        *(tag("p", sentence) for sentence in answer.told),
        class_=f"answer {answer_tone(answer)}".strip(),
    )


def _metrics(result: ArmResult, analysis: Analysis, *, named: bool) -> Markup:
    shown = [item for item in result.findings if item.relative is not None]
    end = axis_end(item.relative for item in shown if item.relative is not None)
    control = analysis.arms[0]
    rows = []
    for group, title in GROUPS.items():
        findings = [item for item in result.findings if item.metric.group is group]
        if findings:
            rows.append(tag("tr", tag("th", title, colspan=6), class_="group"))
            rows += [_row(item, end, control) for item in findings]
    head = tag(
        "tr",
        tag("th", "Metric"),
        tag("th", control, class_="number"),
        tag("th", result.arm, class_="number"),
        tag("th", "Change", class_="number"),
        tag("th", axis(end), class_="wide"),
        tag("th", ""),
    )
    if not rows:
        rows.append(tag("tr", tag("td", "No metric was measured.", class_="soft")))
    return tag(
        "section",
        tag("h2", f"Every metric: {result.arm}" if named else "Every metric"),
        tag(
            "p",
            "A bar is where the true change may lie; a dashed line, the harm that a guardrail allows.",
            class_="soft small",
        ),
        tag("table", tag("thead", head), tag("tbody", *rows)),
    )


def _row(item: Finding, end: float, control: str) -> Markup:
    unit = item.metric.unit
    tone = tone_of(item.reading)
    plot: Markup | None = None
    if item.relative is not None:
        plot = interval_plot(item.relative, end, tone, _signed_margin(item))
    beside = [unit_beside(unit), "less what the past foretold" if item.variance_cut else ""]
    title = together(
        item.metric.title,
        tag("span", "decides", class_="badge") if item.decides else None,
        tag("span", ", ".join(filter(None, beside)), class_="unit"),
    )
    return tag(
        "tr",
        tag("td", title, class_="title"),
        _number(control, None if item.control is None else amount(item.control, unit)),
        _number(item.arm, None if item.value is None else amount(item.value, unit)),
        _number("change", None if item.effect is None else changed(item.effect, unit)),
        tag("td", plot, class_="wide"),
        tag("td", tag("span", reading_word(item), class_=f"word {tone}".strip()), class_="small"),
    )


def _number(label: str, value: str | None) -> Markup:
    return tag("td", value or "", class_="number", data_label=label if value else None)


def _guardrails(result: ArmResult, *, named: bool) -> Markup | None:
    items = [item for item in result.findings if item.metric.guardrail is not None]
    if not items:
        return None
    rows = [
        tag(
            "tr",
            tag("td", item.metric.title, class_="title"),
            _number("allows", guard_limit(item)),
            _number("change", guarded(item) if item.guarded else None),
            tag("td", guard_tag(item), class_="small"),
        )
        for item in items
    ]
    head = tag(
        "tr",
        tag("th", "Guardrail"),
        tag("th", "Allows", class_="number"),
        tag("th", "Change", class_="number"),
        tag("th", ""),
    )
    return tag(
        "section",
        tag("h2", f"Guardrails: {result.arm}" if named else "Guardrails"),
        tag("table", tag("thead", head), tag("tbody", *rows), class_="guardrails"),
    )


def guard_tag(item: Finding) -> Markup:
    """How a guardrail stands, in its colour."""
    if item.guard is None:
        return tag("span", item.lacks or "too early", class_="word")
    return tag("span", guard_word(item.guard), class_=f"word {_GUARD_TONES[item.guard]}".strip())


def answer_tone(answer: Answer) -> str:
    """The class of an answer's colour."""
    return {True: "good", False: "bad", None: ""}[answer.is_good]


def guard_tone(guard: Guard | None) -> str:
    """The class of a guardrail's colour."""
    return "" if guard is None else _GUARD_TONES[guard]


def tone_of(reading: Reading) -> str:
    """The class of a reading's colour."""
    return {Reading.BETTER: "good", Reading.WORSE: "bad"}.get(reading, "")


def moment(at: datetime) -> str:
    """A time as a reader writes it."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _signed_margin(item: Finding) -> float | None:
    margin = item.metric.guardrail
    if margin is None:
        return None
    return margin if item.metric.direction is Direction.DOWN else -margin
