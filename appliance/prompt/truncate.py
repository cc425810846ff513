"""How much room a prompt has, and how much is cut at once. Never: the cut itself (`_core.cut`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Room for a prompt, in tokens.

    `limit` is the model's context, `reserve` what the reply needs, `step` how much is cut at once.
    """

    limit: int
    reserve: int
    step: int

    def __post_init__(self) -> None:
        assert self.limit > 0
        assert self.reserve >= 0
        assert self.step >= 0

    @property
    def room(self) -> int:
        """What a prompt may use."""
        return self.limit - self.reserve


def window(*, limit: int, reserve: int, step: int) -> Window:
    """A window whose reserve and step are at most a quarter of the limit each."""
    return Window(limit=limit, reserve=min(reserve, limit // 4), step=min(step, limit // 4))
