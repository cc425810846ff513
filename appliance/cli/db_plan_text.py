"""A plan as a person or a program reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from appliance.cli.plain_text import indented, size, visible
from appliance.counted import counted
from appliance.dbops.duration import duration

if TYPE_CHECKING:
    from appliance.dbops.plan.plan import Plan
    from appliance.dbops.plan.step import Step

STAGES = {
    1: "bring writes back",
    2: "restore a comfortable margin",
    3: "repair what was skipped",
}
SHOWN_MAX = 20
"""Relations of one kind of step that are printed by name; of more, the largest."""

FIRST_USER_OID = 16_384
"""`FirstNormalObjectId` (access/transam.h): relations below it came with the database."""


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
        f"\nstage {number}, {STAGES[number]}: {counted(len(steps), 'step')}, {size(total)} to read, "
        f"up to {size(wal)} of WAL, {duration(sum(step.seconds for step in steps))}"
    )
    for kind, group in groupby(steps, lambda step: step.kind):
        together = list(group)
        # Those that ask for something have a reason each that is to be read.
        if all(step.relation_oid is not None and step.statements for step in together):
            yield from _relation_lines(kind.value, together)
        else:
            for step in together:
                yield from step_lines(step)


def _relation_lines(words: str, steps: Sequence[Step]) -> Iterator[str]:
    """A line for each database's own relations, which are many and small, then the others by name."""
    own = [step for step in steps if (step.relation_oid or 0) < FIRST_USER_OID]
    for name in dict.fromkeys(step.database for step in own):
        catalogs = [step for step in own if step.database == name]
        total = size(sum(step.bytes for step in catalogs))
        yield f"  {words}: {counted(len(catalogs), 'catalog')} of {visible(name or '')} ({total})"
    others = [step for step in steps if (step.relation_oid or 0) >= FIRST_USER_OID]
    largest = sorted(others, key=lambda step: -step.bytes)[:SHOWN_MAX]
    shown = {step.key for step in largest}
    for step in others:
        if step.key in shown:
            age = f", {step.xid_age:,} XIDs and {step.mxid_age:,} MXIDs old" if step.xid_age else ""
            yield f"  {words}: {visible(step.object)} ({size(step.bytes)}{age})"
    if len(others) > SHOWN_MAX:
        rest = size(sum(step.bytes for step in others if step.key not in shown))
        yield f"  {words}: {counted(len(others) - SHOWN_MAX, 'smaller one')} ({rest}; --json names them)"


def step_lines(step: Step) -> Iterator[str]:
    """What is done to what, and why."""
    amount = f" ({size(step.bytes)})" if step.bytes else ""
    yield f"  {step.kind.value}: {visible(step.object)}{amount}"
    yield from indented(visible(step.reason), 6)
    for choice in step.choices:
        yield f"      {choice.consent.value}: {visible('; '.join(choice.statements))}"
        yield f"        loses {choice.loses}"
