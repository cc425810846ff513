"""What a report is about, beside what was measured. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArm:
    """An arm as a reader knows it; `version` is the beginning of the prompt's."""

    name: str
    version: str
    share: float
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An experiment as its report names it: `arms` with the control first, all times in UTC.

    `shipping` says in sentences what making an arm everybody's would cost the cache, by the arm's name.
    `notes` are what else a reader must know: what is missing, what was refused, what happened meanwhile.
    """

    name: str
    character: str
    hypothesis: str
    state: str
    arms: tuple[ReportArm, ...]
    looked_at: datetime
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    shipping: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def shipping_of(self, arm: str) -> str | None:
        """What shipping this arm would cost."""
        return dict(self.shipping).get(arm)
