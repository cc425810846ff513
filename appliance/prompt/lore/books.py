"""A character's lorebooks, compiled together, and where their texts go.

Never: which entries are active (`activation`), or what a conversation has come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from appliance.prompt.lore.lorebook import Lorebook
from appliance.prompt.lore.matching import CompiledBook, Found
from appliance.prompt.lore.placement import DEFAULT_PLACEMENT, Placement

Heard: TypeAlias = tuple[Found, ...]
"""What was found in one message, book by book."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lore:
    """All books of a character. `depth` is how many of the latest messages any entry looks at.

    `remembers`: an entry asks what was called up before; `asks_greeting`: with which greeting the
    conversation began. `standing_chars` are those of the entries that need no key.
    """

    books: tuple[CompiledBook, ...] = ()
    placement: Placement = DEFAULT_PLACEMENT
    depth: int = 0
    remembers: bool = False
    asks_greeting: bool = False
    standing_chars: int = 0

    @classmethod
    def of(cls, books: Sequence[Lorebook], placement: Placement = DEFAULT_PLACEMENT) -> Lore:
        """Compile books; those without entries are left out."""
        compiled = tuple(CompiledBook.of(book) for book in books if book.entries)
        depths = (max(book.book.scan_depth, book.scan_depth_max) for book in compiled)
        entries = [entry for book in compiled for entry in book.book.entries]
        said = [entry.decorators for entry in entries]
        return cls(
            books=compiled,
            placement=placement,
            depth=max(depths, default=0),
            remembers=any(
                one.keep_activate_after_match or one.dont_activate_after_match for one in said
            ),
            asks_greeting=any(one.is_greeting is not None for one in said),
            standing_chars=sum(
                len(book.book.entries[index].content)
                for book in compiled
                for index in book.standing
            ),
        )

    @classmethod
    def together(cls, several: Sequence[Lore]) -> Lore:
        """The books of several characters, frozen wherever one of them would have its own."""
        return cls(
            books=tuple(book for lore in several for book in lore.books),
            depth=max((lore.depth for lore in several), default=0),
            remembers=any(lore.remembers for lore in several),
            asks_greeting=any(lore.asks_greeting for lore in several),
            standing_chars=sum(lore.standing_chars for lore in several),
        )

    def heard(self, text: str) -> Heard:
        """The keys in a text."""
        return tuple(book.found(text) for book in self.books)
