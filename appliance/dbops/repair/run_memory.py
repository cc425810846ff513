"""What a run remembers of its steps: how they ended, which are not to be tried again, what they met.

Owns the journal's records of steps. Never: takes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from appliance.dbops.blockers.damage import DamageKind
from appliance.dbops.faults import STOPS, RepairFault
from appliance.dbops.plan.history import History, Pin, RelationKey
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_journal import RunJournal

ATTEMPTS_MAX = 3
"""Of one step in one run: a lock or a lost connection may be gone by then, a held row be free."""
ENDINGS_MAX = 12
"""Of one session, five seconds each: what waits for its end is not given up before. A standby that was
ended is back several times a second, and each time may be the quicker one."""
_ENDINGS = (RepairFault.ENDING, RepairFault.RETURNED)

_WORTH_A_RETRY = (
    RepairFault.LOCKED,
    RepairFault.PINNED,
    RepairFault.CONNECTION,
    RepairFault.ENDING,
)

_MENDS = {
    StepKind.REINDEX: DamageKind.INDEX,
    StepKind.REINDEX_LOCKED: DamageKind.INDEX,
    StepKind.ZERO_PAGES: DamageKind.PAGE,
    StepKind.FREEZE_ROWS: DamageKind.ROW,
}


class RunMemory:
    """Of one run, with what the journal knows of those before it."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._attempts: dict[str, int] = {}
        self._settled: set[str] = set()
        self._damaged: dict[DamageKind, set[RelationKey]] = {kind: set() for kind in DamageKind}
        self._under_lock: dict[RelationKey, tuple[str, ...]] = {}
        self._pins: set[Pin] = set()
        self._is_refused = False
        self.ended: list[tuple[Step, Result]] = []

    def announce(self, step: Step, choice: Choice | None) -> None:
        """A step is about to be taken: durable when this returns."""
        self._journal.write(
            "started",
            key=step.key,
            kind=step.kind.value,
            database=step.database,
            relation_oid=step.relation_oid,
            consent=None if choice is None else choice.consent.value,
        )

    def pinned(self, pins: Iterable[Pin]) -> None:
        """A VACUUM waited in vain for a page that one of these may have in use."""
        self._pins.update(pins)

    def refused(self) -> None:
        """A write was refused while every database is young; until the next one is tried."""
        self._is_refused = True

    def remember(self, step: Step, result: Result) -> None:
        """A step has ended, or was not taken."""
        if step.kind is StepKind.PROBE:
            self._is_refused = False
        self.ended.append((step, result))
        self._journal.write(
            "ended",
            sync=False,
            key=step.key,
            kind=step.kind.value,
            object=step.object,
            database=step.database,
            relation_oid=step.relation_oid,
            state=result.state.value,
            words=result.words,
            bytes=step.bytes,
            seconds=round(result.seconds, 3),
        )
        if result.state is not State.SKIPPED:
            self._attempts[step.key] = self._attempts.get(step.key, 0) + 1
        if result.damage is not None:
            place = RelationKey(database=result.damage.database, oid=result.damage.relation_oid)
            known = self._damaged[result.damage.kind]
            if place not in known:
                known.add(place)
                is_elsewhere = result.damage.relation_oid != step.relation_oid
                if is_elsewhere or result.damage.kind in (DamageKind.INDEX, DamageKind.VALUE):
                    return  # Once that is mended or left out, the same step is worth another try.
        elif result.under_lock:
            self._under_lock[_place(step)] = result.under_lock
        elif result.state is State.DONE and step.kind in _MENDS:
            self._damaged[_MENDS[step.kind]].discard(_place(step))
            self._under_lock.pop(_place(step), None)
        if self._is_settled(step, result):
            self._settled.add(step.key)

    def history(self, *, settled: bool = True) -> History:
        """For the next plan; without `settled`, for what is left in the end."""
        past = self._journal.history()
        return replace(
            past,
            settled=frozenset(self._settled if settled else ()),
            damaged=frozenset(self._damaged[DamageKind.PAGE]),
            without_file=frozenset(self._damaged[DamageKind.FILE]),
            bad_rows=frozenset(self._damaged[DamageKind.ROW]),
            bad_values=frozenset(self._damaged[DamageKind.VALUE]),
            bad_indexes=past.bad_indexes | self._damaged[DamageKind.INDEX],
            under_lock=MappingProxyType(dict(self._under_lock)),
            pins=frozenset(self._pins),
            refused=self._is_refused,
        )

    @property
    def took_ids(self) -> bool:
        """Whether the last try of a write was one; False where there was none."""
        tried = self._last_try
        return tried is not None and tried.state is State.DONE

    @property
    def refusal(self) -> str | None:
        """What became of the last try of a write, where the server took none."""
        tried = self._last_try
        if tried is None or tried.state is State.DONE:
            return None
        if tried.fault in STOPS:
            return f"everything is young, and the server refuses writes all the same: {tried.words}"
        return f"everything is young, and a try of a write failed all the same: {tried.words}"

    @property
    def _last_try(self) -> Result | None:
        tries = [result for step, result in self.ended if step.kind is StepKind.PROBE]
        return tries[-1] if tries else None

    def _is_settled(self, step: Step, result: Result) -> bool:
        tries_max = ENDINGS_MAX if result.fault in _ENDINGS else ATTEMPTS_MAX
        if self._attempts.get(step.key, 0) >= tries_max:
            return True
        match result.state:
            case State.DECLINED:
                return True
            case State.SKIPPED:
                # What it needs may still be done in the next round, unless that is settled too.
                return not step.needs or any(key in self._settled for key in step.needs)
            case State.FAILED:
                return result.fault not in _WORTH_A_RETRY
            case State.HELD:
                return step.kind is StepKind.AUTOVACUUM  # It has had its ten minutes.
            case _:
                return False


def _place(step: Step) -> RelationKey:
    assert step.database is not None
    assert step.relation_oid is not None
    return RelationKey(database=step.database, oid=step.relation_oid)
