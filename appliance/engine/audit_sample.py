"""A bounded random sample of the paths that finished sequences left in the cache. Never: computes.

Each path that ends has the same chance to be in it (reservoir sampling, Vitter's algorithm R); what it
costs, a copy of the tokens, is paid for the paths that are chosen alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from appliance import tokens
from appliance.engine.sequence import Sequence
from appliance.engine.stretches import of_positions
from appliance.tokens import TokenIds

PATHS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPath:
    """A path whose K/V are said to be cached: its tokens from position 0 on, and whose they are."""

    token_ids: TokenIds
    stretches: tuple[tuple[bytes, int], ...]

    @property
    def tokens(self) -> int:
        """Positions of the path."""
        return tokens.count(self.token_ids)


class PathSample:
    """The paths to audit next."""

    def __init__(self, random_source: random.Random, *, paths_max: int = PATHS_MAX) -> None:
        self._random = random_source
        self._paths_max = paths_max
        self._paths: list[CachedPath] = []
        self._offered = 0

    def __len__(self) -> int:
        return len(self._paths)

    def offer(self, sequence: Sequence, written: int) -> CachedPath | None:
        """Consider the first `written` tokens of a sequence that still has its lease.

        Gives the path when it was taken into the sample.
        """
        if written == 0:
            return None
        self._offered += 1
        place = len(self._paths)
        if place >= self._paths_max:
            place = self._random.randrange(self._offered)
            if place >= self._paths_max:
                return None
        path = path_of(sequence, written)
        self._paths[place : place + 1] = [path]
        return path

    def take(self) -> CachedPath | None:
        """A random path, which leaves the sample."""
        if not self._paths:
            return None
        self._offered = min(self._offered, self._paths_max) - 1
        return self._paths.pop(self._random.randrange(len(self._paths)))


def path_of(sequence: Sequence, written: int) -> CachedPath:
    """The first `written` tokens of a sequence that has its lease. O(history)."""
    assert sequence.lease is not None
    before = tokens.head(sequence.lease.token_ids(), sequence.first) if sequence.first else b""
    token_ids = tokens.head(before + sequence.tokens.tobytes(), written)
    # The reply and what closes it go on under the prompt's last namespace.
    stretches = tuple(of_positions(sequence.stretches, 0, written))
    return CachedPath(token_ids=token_ids, stretches=stretches)
