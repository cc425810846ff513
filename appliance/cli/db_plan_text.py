"""A plan as a person or a program reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from appliance.cli.plain_text import size, visible

if TYPE_CHECKING:
    from appliance.dbops.plan import Plan
    from appliance.dbops.step import Step

STAGES = {
    1: "bring writes back",
    2: "restore a comfortable margin",
    3: "repair what was skipped",
}
SHOWN_MAX = 8
"""Steps of one kind that are printed one by one; of more, the largest."""


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything that a run would do."""
    return {
        "taken_at": plan.taken_at.isoformat(),
        "system_id": plan.system_id,
        "xids_left": plan.xids_left,
        "mxids_left": plan.mxids_left,
        "rate_bytes_per_s": plan.rate_bytes_per_s,
        "rate_measured": plan.rate_measured,
        "maintenance": plan.maintenance,
        "notes": list(plan.notes),
        "steps": [step_json(step) for step in plan.steps],
    }


def step_json(step: Step) -> dict[str, Any]:
    """One step."""
    return {
        "key": step.key,
        "kind": step.kind.value,
        "stage": step.stage,
        "database": step.database,
        "object": step.object,
        "reason": step.reason,
        "statements": list(step.statements),
        "settings": dict(step.settings),
        "needs": list(step.needs),
        "choices": [
            {
                "consent": choice.consent.value,
                "statements": list(choice.statements),
                "loses": choice.loses,
            }
            for choice in step.choices
        ],
        "xid_age": step.xid_age,
        "mxid_age": step.mxid_age,
        "bytes": step.bytes,
        "wal_bytes": step.wal_bytes,
        "seconds": round(step.seconds, 1),
    }


def plan_text(plan: Plan) -> str:
    """The plan for a terminal."""
    lines = [f"{plan.xids_left:,} transaction IDs and {plan.mxids_left:,} multixacts are left"]
    if plan.xids_left <= 0 or plan.mxids_left <= 0:
        lines[0] += ": PostgreSQL refuses commands that need a new one"
    lines += [f"note: {visible(note)}" for note in plan.notes]
    if not plan.steps:
        return "\n".join([*lines, "nothing has to be done"])
    how = "measured" if plan.rate_measured else "assumed until measured"
    lines.append(f"times at {plan.rate_bytes_per_s / 1e6:.0f} MB/s ({how})")
    if plan.maintenance:
        lines.append("during stage 1 the server's finished turns wait in its journal")
    for number in STAGES:
        lines += _stage_lines(number, plan.stage(number))
    consents = dict.fromkeys(choice.consent.value for step in plan.steps for choice in step.choices)
    if consents:
        lines.append(f"\nto be agreed to: {', '.join(consents)} (asked one by one, or --yes KIND)")
    return "\n".join(lines)


def _stage_lines(number: int, steps: Sequence[Step]) -> Iterator[str]:
    if not steps:
        return
    total, wal = sum(step.bytes for step in steps), sum(step.wal_bytes for step in steps)
    yield (
        f"\nstage {number}, {STAGES[number]}: {len(steps)} steps, {size(total)} to read, up to "
        f"{size(wal)} of WAL, {duration(sum(step.seconds for step in steps))}"
    )
    for kind, group in groupby(steps, lambda step: step.kind):
        together = list(group)
        if len(together) <= SHOWN_MAX:
            for step in together:
                yield from step_lines(step)
        else:
            yield from _many_lines(kind.value, together)


def _many_lines(words: str, steps: Sequence[Step]) -> Iterator[str]:
    """A few large ones stand for all: a cluster has hundreds of catalogs, and may have 10,000 tables."""
    databases = ", ".join(dict.fromkeys(step.database or "" for step in steps))
    yield f"  {words}: {len(steps)} relations of {databases}; the largest, which are not first:"
    for step in sorted(steps, key=lambda step: -step.bytes)[:SHOWN_MAX]:
        age = f"{step.xid_age:,} XIDs old" if step.xid_age else ""
        yield f"      {size(step.bytes):>10}  {visible(step.object)}  {age}".rstrip()


def step_lines(step: Step) -> Iterator[str]:
    """What is done to what, and why."""
    amount = f" ({size(step.bytes)})" if step.bytes else ""
    yield f"  {step.kind.value}: {visible(step.object)}{amount}"
    yield f"      {visible(step.reason)}"
    for choice in step.choices:
        yield f"      {choice.consent.value}: {visible('; '.join(choice.statements))}"
        yield f"        loses {choice.loses}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
