"""A character's lorebooks, compiled together, and where their texts go.

Never: which entries are active (`activation`), or what a conversation has come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from appliance.prompt.lore.lorebook import Lorebook
from appliance.prompt.lore.matching import CompiledBook, Found

Heard: TypeAlias = tuple[Found, ...]
"""What was found in one message, book by book."""


class Placement(Enum):
    """Where the texts of entries go."""

    FROZEN = "frozen"
    """Right before the message that called them up, for good: the prompt before it stays as it was."""

    AS_WRITTEN = "as_written"
    """Where each entry says, anew in every turn: what follows is computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lore:
    """All books of a character. `depth` is how many of the latest messages any entry looks at."""

    books: tuple[CompiledBook, ...] = ()
    placement: Placement = Placement.FROZEN
    depth: int = 0

    @classmethod
    def of(cls, books: Sequence[Lorebook], placement: Placement = Placement.FROZEN) -> Lore:
        """Compile books; those without entries are left out."""
        compiled = tuple(CompiledBook.of(book) for book in books if book.entries)
        depths = (max(book.book.scan_depth, book.scan_depth_max) for book in compiled)
        return cls(books=compiled, placement=placement, depth=max(depths, default=0))

    def heard(self, text: str) -> Heard:
        """The keys in a text."""
        return tuple(book.found(text) for book in self.books)
