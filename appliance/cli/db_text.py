"""What `appliance db status` and `diagnose` found, as a person reads it at three in the morning. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from appliance.cli.plain_text import indented, size, visible
from appliance.counted import counted
from appliance.dbops.duration import duration

if TYPE_CHECKING:
    from appliance.cli.journal_depth import JournalDepth
    from appliance.dbops.blockers.blocker import Action, Blocker
    from appliance.dbops.monitoring.status import AutovacuumLag, Status
    from appliance.dbops.snapshot.rates import Rate
    from appliance.dbops.snapshot.snapshot import Snapshot

DATABASES_MAX = 6
NAME_COLUMNS = 20
BLOCKERS_MAX = 5

_STAGES = {
    "OK": "healthy",
    "LAGGING": "LAGGING: older than autovacuum should let it become",
    "FAILSAFE": "FAILSAFE: so old that vacuum leaves everything but freezing aside",
    "WARN": "WARNING: fewer than 37 million IDs are left",
    "STOPPED": "STOPPED: commands that need a new ID are refused",
}


def status_text(
    status: Status, journal: JournalDepth | None, missing_rate: str, notes: list[str]
) -> str:
    """One screen of 80 columns; `missing_rate` says why, where there is no rate."""
    rate = _rate_lines(status, missing_rate)
    others = [note for note in notes if missing_rate not in note]
    return "\n".join(visible(line) for line in _status_lines(status, journal, rate, others))


def diagnosis_text(snapshot: Snapshot, found: tuple[Blocker, ...], notes: list[str]) -> str:
    """Every blocker with what to do about it, in the order to do it."""
    return "\n".join(visible(line) for line in _diagnosis_lines(snapshot, found, notes))


def headlines(snapshot: Snapshot) -> Iterator[str]:
    """Which cluster, when, and its stage."""
    standby = ", a standby" if snapshot.in_recovery else ""
    at = snapshot.taken_at.strftime("%Y-%m-%d %H:%M:%S %Z")
    yield f"PostgreSQL {snapshot.version_text}{standby}, {at}"
    yield _STAGES[snapshot.stage.name]


def _status_lines(
    status: Status, journal: JournalDepth | None, rate: Iterator[str], notes: list[str]
) -> Iterator[str]:
    snapshot = status.snapshot
    yield from headlines(snapshot)
    yield ""
    yield _left("transaction IDs", snapshot.xids_left, status.xid_days_left)
    yield _left("multixact IDs", snapshot.mxids_left, status.mxid_days_left)
    if snapshot.members is not None:
        yield _left("multixact members", snapshot.members.left, status.member_days_left)
    yield from rate
    yield ""
    yield f"{'database':<20} {'XID age':>13} {'XIDs left':>13} {'MXID age':>13} {'MXIDs left':>13}"
    for database in snapshot.databases[:DATABASES_MAX]:
        name = database.name
        if len(name) > NAME_COLUMNS:
            yield name  # On a line of its own: cut, two could look the same.
            name = ""
        yield (
            f"{name:<20} {database.xid_age:>13,} {database.xids_left:>13,} "
            f"{database.mxid_age:>13,} {database.mxids_left:>13,}"
        )
    if len(snapshot.databases) > DATABASES_MAX:
        yield f"and {counted(len(snapshot.databases) - DATABASES_MAX, 'younger one')}"
    yield ""
    yield _autovacuum_line(status.autovacuum)
    if journal is not None:
        yield f"journal            {_waiting(journal)}"
    yield from notes
    yield from _held_lines(status.blockers)
    yield from _missing_lines(snapshot)


def _left(name: str, left: int, days: float | None) -> str:
    told = "" if days is None else f"   {days:,.3g} days at the present rate"
    return f"{name:<18} {max(0, left):>15,} left{told}"


def _rate_lines(status: Status, missing: str) -> Iterator[str]:
    if status.rate is None:
        yield f"rate               {missing}"
        return
    yield f"rate               {_rate(status.rate)}"
    if status.daily_rate is not None and status.daily_rate != status.rate:
        yield f"                   {_rate(status.daily_rate)}"


def _rate(rate: Rate) -> str:
    return (
        f"{rate.xids_per_s:,.3g} XIDs/s, {rate.mxids_per_s:,.3g} MXIDs/s, "
        f"WAL {size(rate.wal_bytes_per_s)}/s over {duration(rate.over_s)}"
    )


def _autovacuum_line(lag: AutovacuumLag) -> str:
    state = "on" if lag.on else "OFF"
    behind = (
        "its tables were not looked at" if lag.due is None else f"{counted(lag.due, 'table')} due"
    )
    overdue = f", {lag.overdue} OVERDUE" if lag.overdue else ""
    busy = f"{lag.workers} of {lag.workers_max} workers busy"
    return f"autovacuum         {state}, {busy}, {behind}{overdue}"


def _waiting(journal: JournalDepth) -> str:
    if not journal.entries:
        return "empty"
    waiting = f"{counted(journal.entries, 'turn')} {'waits' if journal.entries == 1 else 'wait'}"
    return f"{waiting}, the oldest for {duration(journal.oldest_s)}"


def _held_lines(found: tuple[Blocker, ...]) -> Iterator[str]:
    if not found:
        yield "held back by       nothing"
        return
    yield f"held back by       {len(found)}; `appliance db diagnose` says what to do"
    for blocker in found[:BLOCKERS_MAX]:
        yield f"  {_title(blocker)}, {_age(blocker)}"
    if len(found) > BLOCKERS_MAX:
        yield f"  and {len(found) - BLOCKERS_MAX} more"


def _missing_lines(snapshot: Snapshot) -> Iterator[str]:
    for item in snapshot.missing:
        where = "" if item.database is None else f" of database {item.database}"
        yield f"NOT KNOWN: {item.part}{where}: {item.reason}"


def _diagnosis_lines(
    snapshot: Snapshot, found: tuple[Blocker, ...], notes: list[str]
) -> Iterator[str]:
    yield from headlines(snapshot)
    yield from notes
    if not found:
        yield "nothing holds it back"
    for number, blocker in enumerate(found, start=1):
        yield ""
        yield f"{number}. {_title(blocker)}"
        yield from indented(f"{_age(blocker)}, holds {blocker.scope}", 3)
        yield from indented(blocker.detail, 3)
        for action in blocker.actions:
            yield from _action_lines(action)
    if snapshot.missing:
        yield ""
        yield from _missing_lines(snapshot)


def _title(blocker: Blocker) -> str:
    return f"{blocker.kind.value.replace('_', ' ')}: {blocker.id}"


def _age(blocker: Blocker) -> str:
    ages = []
    if blocker.age is not None:
        ages.append(f"{blocker.age:,} XIDs")
    if blocker.mxid_age is not None and blocker.mxid_age > (blocker.age or 0):
        ages.append(f"{blocker.mxid_age:,} MXIDs")
    return f"{' and '.join(ages)} old" if ages else "of unknown age"


def _action_lines(action: Action) -> Iterator[str]:
    prompt = "$" if action.form == "shell" else ">"
    where = f"   (in database {action.database})" if action.database is not None else ""
    yield f"   {prompt} {action.text}{where}"
    yield from indented(action.consequence, 5)
