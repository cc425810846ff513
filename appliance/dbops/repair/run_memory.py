"""What a run remembers of its steps: how they ended, which are not to be tried again, what they met.

Owns the journal's records of steps. Never: takes one.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.dbops.blockers.damage import Damage
from appliance.dbops.faults import STOPS, Fault
from appliance.dbops.plan.history import History, RelationKey
from appliance.dbops.plan.step import Choice, Step, StepKind
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_step import Result, State

ATTEMPTS_MAX = 3
"""Of one step in one run: a lock or a lost connection may be gone by then, a held row be free."""

_WORTH_A_RETRY = (Fault.LOCKED, Fault.CONNECTION)


class RunMemory:
    """Of one run, with what the journal knows of those before it."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._attempts: dict[str, int] = {}
        self._settled: set[str] = set()
        self._damaged: set[RelationKey] = set()
        self._bad_rows: set[RelationKey] = set()
        self._bad_indexes: set[RelationKey] = set()
        self.ended: list[tuple[Step, Result]] = []

    def announce(self, step: Step, choice: Choice | None) -> None:
        """A step is about to be taken: durable when this returns."""
        self._journal.write(
            "started",
            key=step.key,
            database=step.database,
            relation_oid=step.relation_oid,
            consent=None if choice is None else choice.consent.value,
        )

    def remember(self, step: Step, result: Result) -> None:
        """A step has ended, or was not taken."""
        self.ended.append((step, result))
        self._journal.write(
            "ended",
            sync=False,
            key=step.key,
            object=step.object,
            database=step.database,
            relation_oid=step.relation_oid,
            state=result.state.value,
            words=result.words,
            bytes=step.bytes,
            seconds=round(result.seconds, 3),
        )
        self._attempts[step.key] = self._attempts.get(step.key, 0) + 1
        if result.damage is not None:
            place = RelationKey(database=result.damage.database, oid=result.damage.relation_oid)
            known = self._known(result.damage)
            if place not in known:
                known.add(place)
                if result.damage.index is not None:
                    return  # Once its indexes are built again, the same step is worth another try.
        elif step.kind is StepKind.REINDEX and result.state is State.DONE:
            self._bad_indexes = {p for p in self._bad_indexes if p.oid != step.relation_oid}
        if self._is_settled(step, result):
            self._settled.add(step.key)

    def history(self, *, settled: bool = True) -> History:
        """For the next plan; without `settled`, for what is left in the end."""
        return replace(
            self._journal.history(),
            settled=frozenset(self._settled if settled else ()),
            damaged=frozenset(self._damaged),
            bad_rows=frozenset(self._bad_rows),
            bad_indexes=frozenset(self._bad_indexes),
        )

    @property
    def refusal(self) -> str | None:
        """What the server answered to the last try of a write, where it gave out no ID."""
        tries = [result for step, result in self.ended if step.kind is StepKind.PROBE]
        if not tries or tries[-1].fault not in STOPS:
            return None
        return f"everything is young, and the server refuses writes all the same: {tries[-1].words}"

    def _known(self, damage: Damage) -> set[RelationKey]:
        if damage.index is not None:
            return self._bad_indexes
        return self._bad_rows if damage.block is None else self._damaged

    def _is_settled(self, step: Step, result: Result) -> bool:
        if self._attempts[step.key] >= ATTEMPTS_MAX:
            return True
        match result.state:
            case State.DECLINED:
                return True
            case State.SKIPPED:
                # What it needs may still be done in the next round, unless that is settled too.
                return not step.needs or any(key in self._settled for key in step.needs)
            case State.FAILED:
                return result.fault not in _WORTH_A_RETRY
            case _:
                return False
