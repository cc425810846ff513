"""Whose tokens a path holds: stretches, (namespace, number of tokens) each. Never: a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Stretch: TypeAlias = tuple[bytes, int]


def of_positions(stretches: Sequence[Stretch], first: int, stop: int) -> list[Stretch]:
    """Those of positions `[first, stop)`: what follows a prompt is in its last stretch's namespace.

    One of no tokens when there are no positions. `stop` is not before the last stretch.
    """
    last = stop - sum(count for _, count in stretches[:-1])
    assert last >= 0
    covered: list[Stretch] = []
    for namespace, count in (*stretches[:-1], (stretches[-1][0], last)):
        skipped = min(first, count)
        first -= skipped
        if count > skipped:
            covered.append((namespace, count - skipped))
    return covered or [(stretches[-1][0], 0)]
