"""A report as JSON: every figure of the page, and its answers as sentences. Never: another judgement."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from appliance.experiment.findings import Analysis, ArmResult
from appliance.experiment.report.subject import Subject
from appliance.experiment.report.words import Answer, did_it_help, how_sure, what_it_costs

FORMAT = 2


def report_document(subject: Subject, analysis: Analysis) -> dict[str, Any]:
    """Plain values for JSON; enums by their values, times in ISO 8601, what is not known None."""
    told: dict[str, Any] = {
        "format": FORMAT,
        "subject": subject,
        "answers": {result.arm: _answers(result, analysis, subject) for result in analysis.results},
        "analysis": analysis,
        "sample_ratio_alarms": analysis.sample_ratio.alarms,
    }
    plain = msgspec.to_builtins(told)
    assert isinstance(plain, dict)
    return plain


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What of a document is read again; its answers follow from it."""

    format: Literal[2]
    subject: Subject
    analysis: Analysis


_KEPT = msgspec.json.Decoder(_Kept)


def read_report(document: str) -> tuple[Subject, Analysis] | None:
    """What a kept document is about and its figures; None of one in another format, or without any."""
    try:
        kept = _KEPT.decode(document)
    except msgspec.ValidationError:
        return None
    return kept.subject, kept.analysis


def report_text(subject: Subject, analysis: Analysis) -> str:
    """The first screen for a terminal."""
    lines = [f"{subject.name} ({subject.state}): {subject.hypothesis}", *subject.notes]
    if analysis.crossed:
        lines.append(f"Users in two arms: {analysis.crossed:,}, left out of every figure.")
    for result in analysis.results:
        lines += ["", f"{result.arm} beside {analysis.arms[0]}"]
        for question, answer in _answers(result, analysis, subject).items():
            lines.append(f"  {question.replace('_', ' ').capitalize()}? {answer.short}.")
            lines += [f"    {sentence}" for sentence in answer.told]
    return "\n".join(lines) + "\n"


def _answers(result: ArmResult, analysis: Analysis, subject: Subject) -> dict[str, Answer]:
    return {
        "did_it_help": did_it_help(result, analysis, subject),
        "how_sure_are_we": how_sure(result, analysis),
        "what_does_it_cost": what_it_costs(result, analysis, subject),
    }
