"""What of a cluster could not be read. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A part that could not be read: of one database, or (None) of the whole cluster."""

    part: str
    database: str | None
    reason: str
