"""Macros that are random or tell the time, frozen for a conversation: every turn writes the same text.

A draw depends on the conversation's seed, the part and how many draws the part made before it, so an
edit of one part moves no draw of another. Never: a clock or a source of randomness of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

NAMES = frozenset({"pick", "roll", "date"})

_FORMAT_CHARS_MAX = 100
_SIDES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a conversation was begun with: its seed (its id will do), and when."""

    seed: bytes
    started: datetime

    def macros(self, part: str) -> Mapping[str, Callable[..., Any]]:
        """The macros of one rendering of a part."""
        draws = _Draws(seed=self.seed, part=part)

        def pick(values: Sequence[Any]) -> Any:
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise TypeError("pick takes a list with something in it")
            return values[draws.next_below(len(values))]

        def roll(sides: int) -> int:
            if not isinstance(sides, int) or not 1 <= sides <= _SIDES_MAX:
                raise TypeError(f"roll takes a number of sides from 1 to {_SIDES_MAX}")
            return 1 + draws.next_below(sides)

        def date(format: str = "%d %B %Y") -> str:
            if not isinstance(format, str) or len(format) > _FORMAT_CHARS_MAX:
                raise TypeError(f"date takes a format of at most {_FORMAT_CHARS_MAX} characters")
            return self.started.strftime(format)

        return {"pick": pick, "roll": roll, "date": date}


class _Draws:
    def __init__(self, *, seed: bytes, part: str) -> None:
        self._key = len(seed).to_bytes(4, "little") + seed + part.encode()
        self._made = 0

    def next_below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1, by multiplying a 64-bit fraction (Lemire 2019, unbiased enough
        for bounds far below 2**64)."""
        digest = hashlib.sha256(self._key + self._made.to_bytes(8, "little")).digest()
        self._made += 1
        return int.from_bytes(digest[:8], "little") * bound >> 64
