"""What the engine counts, and the values of a `Stats` frame. Never: decides anything by them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.engine.sequence import Sequence, State


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the process started.

    `prefix_hit_tokens` and `prompt_tokens` count each request once, at its first admission;
    `recomputed_tokens` are tokens that preempted requests had to compute again. `refused` requests
    were not queued at all. Every request submitted ends as one of `finished`, `cancelled`, `failed`,
    `refused`.
    """

    submitted: int = 0
    admitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    preempted: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    recomputed_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0


def stats_values(
    counters: Counters,
    sequences: Mapping[State, tuple[Sequence, ...]],
    index_stats: Mapping[str, int],
) -> dict[str, float]:
    """All gauges and counters by name; the index's own keep their names (`pages_free` ...), its
    token counters get `index_` in front, for they count every admission."""
    values: dict[str, float] = dict(asdict(counters))
    values |= {state.value: len(members) for state, members in sequences.items()}
    for name, value in index_stats.items():
        values[name if "pages" in name or name == "nodes" else f"index_{name}"] = value
    values["rss_bytes"] = _rss_bytes()
    return values


def _rss_bytes() -> int:
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
