"""How much room a prompt has, and how much is cut at once. Never: the cut itself (`_core.cut`)."""

from __future__ import annotations

from dataclasses import dataclass

HISTORY_PRIORITY = 1
"""The truncation priority of a conversation's turns, where a template says nothing else."""

DRAFT_TOKENS = 96
"""What a new message counts for at least: one of an ordinary length has no say in where the cut is, so
that editing it at the edge of a full window does not move the cut back and forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Room for a prompt, in tokens.

    `limit` is the model's context, `reserve` what the reply needs, `step` how far the places to cut at
    are apart, `draft` what a new message counts for at least.
    """

    limit: int
    reserve: int
    step: int
    draft: int = 0

    def __post_init__(self) -> None:
        assert self.limit > 0
        assert self.reserve >= 0
        assert self.step >= 0
        assert self.draft >= 0

    @property
    def room(self) -> int:
        """What a prompt may use."""
        return self.limit - self.reserve

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As `_core` takes it."""
        return self.limit, self.reserve, self.step, self.draft

    def has_room_for(self, opening: int, *, held: int) -> bool:
        """Whether a message of `opening` tokens goes behind `held` tokens without a cut."""
        return held + max(opening, self.draft) <= self.room


def window(*, limit: int, reserve: int, step: int) -> Window:
    """A window whose reserve and step are at most a quarter of the limit each, the draft a 32nd."""
    return Window(
        limit=limit,
        reserve=min(reserve, limit // 4),
        step=min(step, limit // 4),
        draft=min(DRAFT_TOKENS, limit // 32),
    )
