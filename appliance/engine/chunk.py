"""A piece of one sequence's work in a step. Never: chooses it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The next `count` tokens of a sequence, to be computed in one step.

    `samples`: the chunk ends at the sequence's last token, so the next one is to be chosen.
    """

    sequence: Sequence
    count: int
    samples: bool
