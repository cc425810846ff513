"""Which entries of lorebooks a new message calls up: a pure function of books, messages, what was before.

By the rules of the card formats V2 and V3. What an editor leaves open is decided here: conditions look at
the latest messages alone, entries called up by other entries' contents at any depth of `RECURSION_MAX`,
and a text that stands in the prompt already is not written twice. Never: where it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from appliance.prompt.lore.lorebook import LoreEntry
from appliance.prompt.lore.matching import NOTHING, CompiledBook, Found

RECURSION_MAX = 8
"""How often contents that were just called up are looked through for keys."""

CALLED_MAX = 512
"""Entries of one book at one message beyond which contents call up no more."""

MEASURED_MAX = 1024
"""Entries of one message whose tokens are counted at most."""

TOKEN_BUDGET_DEFAULT = 1024
"""For a book that sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a conversation has come to before a message.

    `active` are digests of entries whose text stands in the prompt, `matched` of those that were called
    up at any time. `replies` counts the character's messages; `greeting` is the index of the one it
    began with, None when it is not known. `is_full`: the window has been full, old turns are cut.
    """

    active: frozenset[str] = frozenset()
    matched: frozenset[str] = frozenset()
    replies: int = 0
    greeting: int | None = None
    is_full: bool = False

    def after(self, called: Sequence[LoreEntry]) -> Before:
        """With these entries written into the prompt, and the reply that follows."""
        digests = frozenset(entry.digest for entry in called)
        return replace(
            self,
            active=self.active | digests,
            matched=self.matched | digests,
            replies=self.replies + 1,
        )


def activated(
    books: Sequence[CompiledBook],
    recent: Sequence[Sequence[Found]],
    before: Before,
    *,
    seed: bytes,
    tokens_of: Callable[[LoreEntry], int],
    tokens_max: int,
) -> tuple[LoreEntry, ...]:
    """The entries to be written before the newest message, in their order.

    `recent[0]` is what was found in the newest message, book by book, `recent[1]` in the one before it,
    and so on. `seed` is the conversation's, for entries with a probability; `tokens_of` measures an
    entry as it is written, all together are at most `tokens_max`.
    """
    kept: list[tuple[int, int, LoreEntry]] = []
    for number, book in enumerate(books):
        budget = min(book.book.token_budget or TOKEN_BUDGET_DEFAULT, tokens_max)
        turn = _Turn(book=book, found=[found[number] for found in recent], before=before, seed=seed)
        indexes = turn.called()
        indexes -= _constants_too_many(book, indexes, before, budget, tokens_of)
        called = [(number, index, book.book.entries[index]) for index in sorted(indexes)]
        kept += _within(called, budget, tokens_of)
    kept = _once(_within(kept, tokens_max, tokens_of))
    kept.sort(key=lambda item: (item[2].insertion_order, item[0], item[1]))
    return tuple(entry for _, _, entry in kept)


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One book at one message."""

    book: CompiledBook
    found: list[Found]
    before: Before
    seed: bytes
    by_depth: dict[int, Found] = field(default_factory=dict)

    def called(self) -> set[int]:
        """The indexes of the entries called up, by the messages and then by each other's contents."""
        book = self.book
        said = self._heard(max(book.scan_depth_max, book.book.scan_depth))
        asking = self._asking(said) | set(book.standing)
        called = newest = {index for index in asking if self._is_called(index, NOTHING)}
        echo = NOTHING
        for _ in range(RECURSION_MAX):
            inner = NOTHING.union(*(book.inner[index] for index in newest)) - echo
            if not inner:
                break
            echo |= inner
            # Also those whose own key is in the messages: a second one may have been missing.
            asking = self._asking(said | echo) - called
            left = CALLED_MAX - len(called)
            newest = {
                index for index in sorted(asking)[: max(left, 0)] if self._is_called(index, echo)
            }
            called = called | newest
        return called

    def _asking(self, found: Found) -> set[int]:
        called = self.book.called
        return {index for key in found if key in called for index in called[key]}

    def _is_called(self, index: int, echo: Found) -> bool:
        """`echo` are the keys in contents that were called up, which count at every depth."""
        entry, needs, before = self.book.book.entries[index], self.book.needs[index], self.before
        said = entry.decorators
        if not entry.enabled or not entry.content or entry.digest in before.active:
            return False
        if said.dont_activate_after_match and entry.digest in before.matched:
            return False
        if said.activate:
            return True
        if said.dont_activate or (said.ignore_on_max_context and before.is_full):
            return False
        if said.is_greeting is not None and before.greeting not in (None, said.is_greeting):
            return False
        if said.activate_only_after is not None and before.replies < said.activate_only_after:
            return False
        if said.activate_only_every is not None and before.replies % said.activate_only_every:
            return False
        if said.keep_activate_after_match and entry.digest in before.matched:
            return True
        heard = self._heard(self.book.depth_of(entry))
        if not needs.none_of.isdisjoint(heard):
            return False
        groups = () if needs.always else (needs.any_of, *needs.groups)
        if any(group.isdisjoint(heard) and group.isdisjoint(echo) for group in groups):
            return False
        return self._is_drawn(entry)

    def _heard(self, depth: int) -> Found:
        """The keys in the latest messages, as many as `depth`."""
        found = self.by_depth.get(depth)
        if found is None:
            found = self.by_depth[depth] = NOTHING.union(*self.found[:depth])
        return found

    def _is_drawn(self, entry: LoreEntry) -> bool:
        """The same for the same place of the same conversation."""
        if entry.probability >= 100:
            return True
        place = f"{entry.digest} {self.before.replies}".encode()
        digest = hashlib.blake2b(place, key=self.seed[:64], digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64 * 100 < entry.probability


def _constants_too_many(
    book: CompiledBook,
    called: set[int],
    before: Before,
    budget: int,
    tokens_of: Callable[[LoreEntry], int],
) -> set[int]:
    """Of the entries called up without a key, those beyond the budget of all that stand in the prompt.

    Were it for each message anew, a book of constants would come in whole, message by message.
    """
    entries = book.book.entries
    new = {index for index in called if book.needs[index].always}
    if not new:
        return set()
    old = {
        index
        for index in book.standing
        if book.needs[index].always and entries[index].digest in before.active
    }
    both = [(0, index, entries[index]) for index in sorted(new | old)]
    return new - {index for _, index, _ in _within(both, budget, tokens_of)}


def _within(
    called: list[tuple[int, int, LoreEntry]], budget: int, tokens_of: Callable[[LoreEntry], int]
) -> list[tuple[int, int, LoreEntry]]:
    """The most important of them, as many as fit: the least important go until the rest does.

    What alone is over the budget is passed over. Measured from the most important on and no further than
    the first that does not fit: of thousands, a budget's worth. MEASURED_MAX are looked at.
    """
    ranked = sorted(called, key=lambda item: _rank(item[2]), reverse=True)[:MEASURED_MAX]
    kept: list[tuple[int, int, LoreEntry]] = []
    total = 0
    for item in ranked:
        size = tokens_of(item[2])
        if size > budget:
            continue
        total += size
        if total > budget:
            break
        kept.append(item)
    return sorted(kept, key=lambda item: item[:2])


def _rank(entry: LoreEntry) -> tuple[bool, float]:
    """The lowest goes first; of equal ones the last of the book."""
    own = entry.insertion_order if entry.priority is None else entry.priority
    return (not entry.decorators.ignore_on_max_context, own)


def _once(called: list[tuple[int, int, LoreEntry]]) -> list[tuple[int, int, LoreEntry]]:
    """Equal entries of several books, or of one, are one."""
    return list({item[2].digest: item for item in reversed(called)}.values())[::-1]
