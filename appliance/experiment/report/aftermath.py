"""What shipping has cost the cache, in sentences beside what was foretold. Never: measures it."""

from __future__ import annotations

from appliance.experiment.findings import Analysis
from appliance.experiment.report.numbers import amount, per_cent
from appliance.experiment.report.page import moment
from appliance.experiment.report.subject import Subject
from appliance.experiment.shipping import Served, Shipped


def aftermath(subject: Subject, analysis: Analysis, found: Shipped) -> tuple[str, ...]:
    """The prediction of the report that it was shipped with, and the measurement."""
    foretold = [subject.shipping_of(found.arm), _in_experiment(analysis, found.arm)]
    kept = (
        "No older chat has had a reply since."
        if found.kept is None
        else f"{_told(found.kept, 'older than that, with the version they kept,')}."
    )
    measured = (
        "No chat opened since has had a reply."
        if found.new is None
        else f"{_told(found.new, 'opened since')}, the first of them all "
        f"{found.new.first_computed:,} tokens."
    )
    return (
        f"Arm {found.arm} was shipped at {moment(found.at)}.",
        *(f"Foretold: {sentence}" for sentence in foretold if sentence is not None),
        f"Measured since: {measured} {kept}",
    )


def _in_experiment(analysis: Analysis, arm: str) -> str | None:
    """What the arm's replies computed and found while it was tried. The control is in every result."""
    is_control = arm == analysis.arms[0]
    result = next((one for one in analysis.results if is_control or one.arm == arm), None)
    if result is None:
        return None
    found = {
        item.metric.name: item.control if is_control else item.value for item in result.findings
    }
    computed, ratio = found.get("computed_tokens"), found.get("hit_ratio")
    if computed is None or ratio is None:
        return None
    return (
        f"in the experiment its replies computed {amount(computed, 'tokens')} prompt tokens each, and "
        f"found {per_cent(ratio)} in the cache."
    )


def _told(served: Served, which: str) -> str:
    return (
        f"{_many(served.replies, 'reply', 'replies')} of {_many(served.chats, 'chat', 'chats')} "
        f"{which} computed "
        f"{amount(served.computed_each, 'tokens')} prompt tokens each and found "
        f"{per_cent(served.hit_ratio)} in the cache"
    )


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
