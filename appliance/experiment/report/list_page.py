"""The operator's list of experiments: what runs, how it stands, its guardrails. Judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.experiment.findings import Analysis, ArmResult, Finding
from appliance.experiment.report.frame import framed
from appliance.experiment.report.markup import Markup, tag
from appliance.experiment.report.numbers import hours
from appliance.experiment.report.page import answer_tone, guard_tone, moment
from appliance.experiment.report.sentences import guard_word, guarded
from appliance.experiment.report.subject import Subject
from appliance.experiment.report.words import Answer, did_it_help
from appliance.experiment.stats.guardrail import Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An experiment of the list. Without an `analysis`, `lacks` says why there is none.

    `address` is where its report is, None where it has none.
    """

    subject: Subject
    analysis: Analysis | None = None
    lacks: str | None = None
    address: str | None = None


def list_page(experiments: tuple[Listed, ...]) -> str:
    """The HTML document, the experiments in the order they come."""
    if not experiments:
        return framed(
            "Experiments",
            tag("h1", "Experiments"),
            tag(
                "p",
                "There are none yet: `appliance experiment create FILE` makes one of a definition.",
                class_="soft",
            ),
        )
    return framed(
        "Experiments",
        tag("h1", "Experiments"),
        tag("ul", *(_item(one) for one in experiments), class_="list"),
    )


def _urgency(item: Finding) -> int:
    """Where it stands among guardrails: what somebody should look at comes first."""
    order = (Guard.BREACHED, Guard.HARMED, Guard.OPEN, None, Guard.SAFE)
    return order.index(item.guard)


def _stands(item: Finding) -> str:
    """A guardrail in a few words; with its figures where somebody should look."""
    if item.guard is None:
        return f"{item.metric.title}: {item.lacks or 'too few users'}"
    told = f"{item.metric.title}: {guard_word(item.guard)}"
    return told if item.guard in (Guard.SAFE, Guard.OPEN) else f"{told}, {guarded(item)}"


def _item(one: Listed) -> Markup:
    subject = one.subject
    name = subject.name
    title = name if one.address is None else tag("a", name, href=one.address)
    return tag(
        "li",
        tag("h2", title, tag("span", subject.state, class_="state")),
        tag("p", subject.hypothesis, class_="small"),
        tag("p", _when(one), class_="soft small"),
        tag("p", one.lacks or "Nothing was measured yet.") if one.analysis is None else None,
        *([] if one.analysis is None else _results(one.analysis, subject)),
    )


def _when(one: Listed) -> str:
    subject, analysis = one.subject, one.analysis
    told = f"On {subject.character}"
    if subject.started_at is None:
        return f"{told}, not started."
    told += f", started {moment(subject.started_at)}"
    if analysis is None:
        return f"{told}."
    return (
        f"{told}, {hours(analysis.hours)} of {hours(analysis.plan.hours)}, {analysis.users:,} users, "
        f"looked at {moment(subject.looked_at)}."
    )


def _results(analysis: Analysis, subject: Subject) -> list[Markup]:
    paused = {arm.name for arm in subject.arms if arm.paused_at is not None}
    return [
        part
        for result in analysis.results
        for part in _result(result, did_it_help(result, analysis, subject), result.arm in paused)
    ]


def _result(result: ArmResult, answer: Answer, is_paused: bool) -> list[Markup]:
    line = tag(
        "p",
        f"{result.arm}{' (paused)' if is_paused else ''}: ",
        tag("span", answer.short, class_=f"word {answer_tone(answer)}".strip()),
        f". {answer.told[0]}" if answer.told else ".",
    )
    guards = [
        tag(
            "li",
            _stands(item),
            class_=guard_tone(item.guard) or None,
        )
        for item in sorted(
            (one for one in result.findings if one.metric.guardrail is not None), key=_urgency
        )
    ]
    return [line, tag("ul", *guards, class_="guards") if guards else tag("p", "No guardrails.")]
