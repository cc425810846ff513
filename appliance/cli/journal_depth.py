"""How many turns wait in the journal of a state folder. Never: takes the journal from the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalDepth:
    """Entries that are not in the database yet, and how long the oldest has waited."""

    entries: int
    oldest_s: float


def journal_depth(data_dir: Path) -> JournalDepth | None:
    """None where there is no journal. Raises JournalDamaged, OSError."""
    from appliance.config import Paths
    from appliance.store.entries import pending_of
    from appliance.store.journal import oldest_s
    from appliance.store.journal_file import read_journal

    scan = read_journal(Paths(data_dir=data_dir, run_dir=data_dir).journal_dir)
    if scan is None:
        return None
    waiting = [entry for _, entry in pending_of(scan.frames)]
    first = waiting[0].at if waiting else None
    return JournalDepth(entries=len(waiting), oldest_s=oldest_s(first, datetime.now(UTC)))
