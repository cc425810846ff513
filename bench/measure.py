"""Timing of alternatives in one run, and the line each figure is printed as.

The machine's speed varies from second to second, so alternatives take turns, round after round, and a
ratio is that of their best rounds; the ratio of the medians stands beside it.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds an item in the best round, and in the median one."""

    best: float
    median: float


def one_core() -> None:
    """Keep this process on one core: a batch call of a peer gets no more threads than ours."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@contextmanager
def quiet_heap() -> Iterator[None]:
    """No garbage collection meanwhile: a peer's many objects must not slow the others down."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def alternate(
    subjects: Mapping[str, Callable[[], object]], *, items: int, rounds: int
) -> dict[str, Timing]:
    """Call each subject once a round, in turn; one call handles `items` items."""
    spent: dict[str, list[float]] = {name: [] for name in subjects}
    with quiet_heap():
        for _ in range(rounds):
            for name, call in subjects.items():
                spent[name].append(seconds(call))
    return {name: timing(rounds_spent, items) for name, rounds_spent in spent.items()}


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def timing(spent: list[float], items: int) -> Timing:
    """Of the rounds' seconds, for so many items each."""
    return Timing(best=min(spent) / items, median=statistics.median(spent) / items)


def compare(figure: str, ours: Timing, peer_name: str, peer: Timing) -> None:
    """Print one figure: ours, the peer's, and how many times ours is faster (best; median)."""
    ratio, of_medians = peer.best / ours.best, peer.median / ours.median
    print(
        f"{figure}: ours {duration(ours.best)} ({duration(ours.median)}), "
        f"{peer_name} {duration(peer.best)} ({duration(peer.median)}), "
        f"ratio {ratio:.1f} ({of_medians:.1f})",
        flush=True,
    )


def report(figure: str, ours: Timing) -> None:
    """Print one figure that has no peer."""
    print(
        f"{figure}: {duration(ours.best)} ({duration(ours.median)}), "
        f"{1 / ours.best:,.0f}/s ({1 / ours.median:,.0f}/s)",
        flush=True,
    )


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
