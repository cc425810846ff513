"""Which turns of a long conversation still go into the prompt: a sticky sawtooth. Pure integers.

The first kept turn only moves forward, only when the window is full, and then by a whole step, so
that between two moves every prompt starts with the one before it and the cache keeps serving it. The
move is a fold over the sizes of the path alone: the same path gives the same cut after a restart, on
a branch, and for a prompt that is looked at years later. Never: text, tokens, or storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.errors import ContextLengthExceeded


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Sizes of one turn in tokens: what opens it (the user's message) and what answers it."""

    opening: int
    answer: int


def first_kept(
    turns: Sequence[Turn], protected: Sequence[tuple[str, int]], window: Window, *, start: int = 0
) -> int:
    """The index of the first turn that goes into the prompt of the last turn's reply.

    The last turn's answer is not part of that prompt. `protected` are the (name, tokens) of the parts
    in every prompt (system text, reply header). `start` is the result for the turns before, or 0:
    the result is the same. Raises ContextLengthExceeded, with names and numbers, when the protected
    parts and the newest opening alone do not fit.
    """
    fixed = sum(tokens for _, tokens in protected)
    anchor = start
    kept = 0
    for index in range(start, len(turns)):
        needed = fixed + kept + turns[index].opening
        if needed > window.room:
            # A turn that fills the window alone is kept alone: the low-water mark yields to it.
            while anchor < index and needed > window.room - window.step:
                gone = turns[anchor].opening + turns[anchor].answer
                anchor += 1
                kept -= gone
                needed -= gone
        kept += turns[index].opening + turns[index].answer
    newest = turns[-1].opening if turns else 0
    if fixed + newest > window.room:
        raise ContextLengthExceeded(_too_long(protected, newest, window))
    return anchor


def _too_long(protected: Sequence[tuple[str, int]], newest: int, window: Window) -> str:
    names = ", ".join(f"{name} {tokens}" for name, tokens in (*protected, ("new message", newest)))
    total = sum(tokens for _, tokens in protected) + newest
    return (
        f"the prompt does not fit: {names} are {total} tokens, the context is {window.limit} tokens "
        f"of which {window.reserve} are kept for the reply"
    )
