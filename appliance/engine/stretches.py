"""Whose tokens a path holds: stretches, (namespace, number of tokens) each. Never: a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Stretch: TypeAlias = tuple[bytes, int]


def of_positions(stretches: Sequence[Stretch], first: int, stop: int) -> list[Stretch]:
    """Those of positions `[first, stop)`: what follows a prompt is in its last stretch's namespace.

    One of no tokens when there are no positions.
    """
    covered: list[Stretch] = []
    begin = 0
    for number, (namespace, count) in enumerate(stretches, start=1):
        end = stop if number == len(stretches) else min(begin + count, stop)
        if end > max(begin, first):
            covered.append((namespace, end - max(begin, first)))
        begin += count
    return covered or [(stretches[-1][0], 0)]
