"""How a step ended. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from appliance.dbops.blockers.damage import Damage
from appliance.dbops.faults import RepairFault


class State(StrEnum):
    """How a step ended."""

    DONE = "done"
    HELD = "held"
    """It was done, and something still keeps what it was done to old."""
    FAILED = "failed"
    DECLINED = "declined"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    """It was broken off by this run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A state, and why, in words; the fault and damage of a failure."""

    state: State
    words: str = ""
    fault: RepairFault | None = None
    damage: Damage | None = None
    under_lock: tuple[str, ...] = ()
    """Indexes, as SQL, that can be built only while nobody writes to their table."""
    seconds: float = field(default=0.0, compare=False)
