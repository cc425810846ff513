"""What the engine counts, and the values of a `Stats` frame. Never: decides anything by them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from appliance.engine.sequence import Sequence, State
from appliance.process_start import STARTED_AT_S
from appliance.wire.frames import Priority


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the process started.

    `prefix_hit_tokens` and `prompt_tokens` count each request once, at its first admission;
    `recomputed_tokens` are tokens that preempted requests had to compute again. `refused` requests were
    not queued, or lost their place to another before they began. `unknown_node` requests are sent again
    with their whole prompt. Every request submitted ends as one of `finished`, `cancelled`,
    `failed`, `refused`, `deadline_exceeded`, `unknown_node`. `preempted` counts all preemptions,
    `preempted_for_others` those that gave an interactive request or another tenant its place.
    """

    submitted: int = 0
    admitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    deadline_exceeded: int = 0
    unknown_node: int = 0
    preempted: int = 0
    preempted_for_others: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    recomputed_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0


def stats_values(
    counters: Counters,
    sequences: Mapping[State, tuple[Sequence, ...]],
    index_stats: Mapping[str, int],
    *,
    step_gauges: Mapping[str, float],
    now: float,
) -> dict[str, float]:
    """All gauges and counters by name; the index's own keep their names (`pages_free` ...), its
    token counters get `index_` in front, for they count every admission."""
    values: dict[str, float] = dict(asdict(counters))
    values |= {state.value: len(members) for state, members in sequences.items()}
    for name, value in index_stats.items():
        values[name if "pages" in name or name == "nodes" else f"index_{name}"] = value
    values |= step_gauges
    values |= _queue_gauges(sequences[State.WAITING], now)
    values["rss_bytes"] = _rss_bytes()
    values["start_time_seconds"] = STARTED_AT_S
    return values


def _queue_gauges(waiting: tuple[Sequence, ...], now: float) -> dict[str, float]:
    """By priority: how many wait, and how long ago the first of them arrived (0: none waits)."""
    gauges: dict[str, float] = {}
    for priority in get_args(Priority):
        arrived = [s.arrived_at for s in waiting if s.request.priority == priority]
        gauges[f"waiting_{priority}"] = len(arrived)
        gauges[f"oldest_wait_s_{priority}"] = now - min(arrived, default=now)
    gauges["waiting_tenants"] = len({sequence.tenant for sequence in waiting})
    return gauges


def _rss_bytes() -> int:
    resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
