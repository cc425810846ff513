"""The first token that two prompts do not share, and what it is in. Pure; knows no conversation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from uuid import UUID

from appliance.prompt.messages import Part, Prompt, Zone
from appliance.tokens import common


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first token that is another one in a prompt made with the new version.

    `part` is what it is in, `zone` that part's. `is_new`: it is in what a new message brings with it.
    """

    position: int
    part: str
    zone: Zone
    is_new: bool = False

    @property
    def goes_cold(self) -> bool:
        """Whether a chat with it computes again what stands before its newest message."""
        return not self.is_new and self.zone is not Zone.VOLATILE


def first_change(old: Prompt, new: Prompt, *, brought_by: UUID | None = None) -> Change | None:
    """Where two whole prompts part, None where they do not. Whose token it is counts as much as which:
    another owner's is not found in the cache. `brought_by` is the message that is new."""
    position = min(common(old.token_ids, new.token_ids), _same_owners(old.stretches, new.stretches))
    if position == old.tokens == new.tokens:
        return None
    # A part that got longer or shorter ends in one of them before the change; one that came or went is in
    # the prompt that has more of them.
    places = [(_at(prompt, position), -len(prompt.part_tokens), prompt) for prompt in (new, old)]
    index, _, shown = min(places, key=lambda place: place[:2])
    part = shown.parts[index]
    return Change(
        position=position,
        part=part.name,
        zone=part.zone,
        is_new=brought_by is not None and _is_of(part, str(brought_by)),
    )


def _at(prompt: Prompt, position: int) -> int:
    """The index of the part that a token is in; of one behind the prompt that of the last."""
    ends = list(accumulate(prompt.part_tokens))
    return min(bisect_right(ends, position), len(ends) - 1)


def _is_of(part: Part, message: str) -> bool:
    """Whether a part is a message or what was written for it, and nothing else."""
    return bool(part.sources) and all(message in (one.id, one.of) for one in part.sources)


def _same_owners(first: Sequence[tuple[bytes, int]], second: Sequence[tuple[bytes, int]]) -> int:
    """How many tokens have the same owners in both."""
    ones, others = iter(first), iter(second)
    same = own = other = 0
    owner, of_other = b"", b""
    while True:
        if own == 0:
            owner, own = next(ones, (b"", 0))
        if other == 0:
            of_other, other = next(others, (b"", 0))
        step = min(own, other)
        if owner != of_other or step == 0:
            return same
        same, own, other = same + step, own - step, other - step
