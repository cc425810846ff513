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
from appliance.experiment.report.words import Answer, did_it_help, what_it_costs
from appliance.experiment.stats.guardrail import Guard

_URGENT = (Guard.BREACHED, Guard.HARMED)


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


def _guardrails(result: ArmResult) -> list[Markup]:
    """Those that somebody should look at, each with its figures; the others by how they stand."""
    items = [item for item in result.findings if item.metric.guardrail is not None]
    if not items:
        return [tag("p", "No guardrails.")]
    urgent = [item for guard in _URGENT for item in items if item.guard is guard]
    calm: dict[str, list[str]] = {}
    for item in items:
        if item.guard is None:
            calm.setdefault(item.lacks or "too few users", []).append(item.metric.title)
        elif item.guard not in _URGENT:
            calm.setdefault(guard_word(item.guard), []).append(item.metric.title)
    chips = [tag("li", _stands(item), class_=guard_tone(item.guard) or None) for item in urgent]
    told = [f"{how[:1].upper()}{how[1:]}: {'; '.join(titles)}." for how, titles in calm.items()]
    shown = [tag("ul", *chips, class_="guards")] if chips else []
    if told:
        which = "Other guardrails" if chips else "Guardrails"
        shown.append(tag("p", f"{which}. {' '.join(told)}", class_="soft small"))
    return shown


def _stands(item: Finding) -> str:
    assert item.guard is not None
    return f"{item.metric.title}: {guard_word(item.guard)}, {guarded(item)}"


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
    found = []
    for result in analysis.results:
        helped, costs = (
            did_it_help(result, analysis, subject),
            what_it_costs(result, analysis, subject),
        )
        line = tag(
            "p",
            f"{result.arm}{' (paused)' if result.arm in paused else ''}: ",
            _word(helped),
            f". {helped.told[0]} " if helped.told else ". ",
            "Cost: ",
            _word(costs),
            ".",
        )
        found += [line, *_guardrails(result)]
    return found


def _word(answer: Answer) -> Markup:
    return tag("span", answer.short, class_=f"word {answer_tone(answer)}".strip())
