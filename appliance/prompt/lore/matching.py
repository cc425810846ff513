"""A lorebook compiled: which keys stand in a text, found in time linear in the text (`_core`).

Owns how an entry's fields become conditions over found keys. Never: which entries are active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from appliance._core import LoreMatcher
from appliance.prompt.lore.lorebook import Lorebook, LoreEntry

Found: TypeAlias = frozenset[int]
"""Numbers of the keys that stand in a text, as one book's matcher counts them."""

NOTHING: Found = frozenset()

_NEVER = ("(", True)
"""A pattern that is refused: it keeps the place of one that is not looked for."""

_OPERATORS = frozenset("\\^$.|?*+()[]{}/")
"""Characters that mean something in a regular expression, or begin one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be found for an entry: one of `any_of`, one of each group, none of `none_of`.

    `always`: nothing at all. Plain numbers of keys.
    """

    any_of: Found
    groups: tuple[Found, ...]
    none_of: Found
    always: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A key that is never found: the entry, the key, and why."""

    entry: LoreEntry
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBook:
    """A book with its matcher. `needs` and `inner` are by entry; `inner` holds what an entry's own
    content calls up, nothing where the book does not scan recursively. `called` leads from a key to the
    entries that ask for it, `standing` are those that may come without one."""

    book: Lorebook
    matcher: LoreMatcher
    needs: tuple[Needs, ...]
    inner: tuple[Found, ...]
    called: Mapping[int, tuple[int, ...]]
    standing: tuple[int, ...]
    scan_depth_max: int
    unusable: tuple[Unusable, ...]

    @classmethod
    def of(cls, book: Lorebook) -> CompiledBook:
        """Compile a book: some 30 ms for 10,000 entries, some seconds for hostile expressions."""
        numbers = _Numbers()
        asked = [_needs(entry, numbers) for entry in book.entries]
        matcher, refused = _matcher(list(numbers.plain), list(numbers.patterns))
        needs = tuple(_counted(one, len(numbers.plain), refused) for one in asked)
        called: dict[int, list[int]] = {}
        for index, need in enumerate(needs):
            for key in need.any_of:
                called.setdefault(key, []).append(index)
        depths = (entry.decorators.scan_depth for entry in book.entries)
        return cls(
            book=book,
            matcher=matcher,
            needs=needs,
            inner=_inner(book, matcher),
            called=MappingProxyType({key: tuple(found) for key, found in called.items()}),
            standing=tuple(
                index
                for index, need in enumerate(needs)
                if need.always or book.entries[index].decorators.keep_activate_after_match
            ),
            scan_depth_max=max((d for d in depths if d is not None), default=0),
            unusable=tuple(_unusable(book, asked, numbers, refused)),
        )

    def found(self, text: str) -> Found:
        """The keys in a text."""
        return frozenset(self.matcher.matches(text))

    def depth_of(self, entry: LoreEntry) -> int:
        """How many of the latest messages an entry's keys are looked for in."""
        own = entry.decorators.scan_depth
        return self.book.scan_depth if own is None else own


def _matcher(
    keys: list[tuple[str, bool, bool]], patterns: list[tuple[str, bool]]
) -> tuple[LoreMatcher, Mapping[int, str]]:
    """The matcher, and the patterns that it does not look for, with the reasons.

    Where all patterns together are too large, the first that fit are kept: the longest such beginning is
    looked for by halves, some ten compilations.
    """
    matcher = LoreMatcher(keys=keys, patterns=patterns)
    refused = dict(matcher.refused)
    usable = [index for index in range(len(patterns)) if _is_of_all(refused.get(index))]
    if not usable:
        return matcher, refused
    fits, over = 0, len(usable)
    while over - fits > 1:
        middle = (fits + over) // 2
        tried = LoreMatcher(keys=[], patterns=[patterns[index] for index in usable[:middle]])
        fits, over = (fits, middle) if tried.refused else (middle, over)
    left = dict.fromkeys(usable[fits:], "the book's expressions before it leave no room for it")
    kept = [_NEVER if index in left else pattern for index, pattern in enumerate(patterns)]
    matcher = LoreMatcher(keys=keys, patterns=kept)
    return matcher, {**dict(matcher.refused), **left}


def _is_of_all(reason: str | None) -> bool:
    """Whether a pattern is refused for the size of all of them."""
    return reason is not None and reason.startswith("the book's expressions are")


class _Numbers:
    """Each different key once."""

    def __init__(self) -> None:
        self.plain: dict[tuple[str, bool, bool], int] = {}
        self.patterns: dict[tuple[str, bool], int] = {}

    def word(self, entry: LoreEntry, key: str, *, whole_words: bool) -> int:
        """The number of a plain key."""
        return self.plain.setdefault((key, entry.case_sensitive, whole_words), len(self.plain))

    def words(self, entry: LoreEntry, keys: Iterable[str]) -> tuple[int, ...]:
        """The numbers of plain keys."""
        return tuple(self.word(entry, key, whole_words=entry.whole_words) for key in keys)

    def expression(self, entry: LoreEntry, key: str) -> int:
        """The number of an expression: below zero, from -1 on. One that is a word is a plain key: some
        editors call every key an expression."""
        if _OPERATORS.isdisjoint(key):
            return self.word(entry, key, whole_words=False)
        return -1 - self.patterns.setdefault((key, entry.case_sensitive), len(self.patterns))


def _needs(entry: LoreEntry, numbers: _Numbers) -> Needs:
    """By V3: with expressions secondary and excluded keys are ignored, additional ones are more of the
    same, and `constant` counts for nothing; here it does where there is no key."""
    said = entry.decorators
    if entry.use_regex:
        keys = (*entry.keys, *(key for group in said.additional_keys for key in group))
        return Needs(
            any_of=frozenset(numbers.expression(entry, key) for key in keys),
            groups=(),
            none_of=NOTHING,
            always=said.activate or (entry.constant and not keys),
        )
    groups = [*said.additional_keys]
    if entry.selective and entry.secondary_keys:
        groups.append(entry.secondary_keys)
    return Needs(
        any_of=frozenset(numbers.words(entry, entry.keys)),
        groups=tuple(frozenset(numbers.words(entry, group)) for group in groups),
        none_of=frozenset(numbers.words(entry, said.exclude_keys)),
        always=entry.constant or said.activate,
    )


def _counted(needs: Needs, words: int, refused: Mapping[int, str]) -> Needs:
    """With the matcher's numbers: expressions behind the words. An entry with one that is refused has
    no keys at all, as V3 says."""
    if any(-1 - key in refused for key in needs.any_of if key < 0):
        return replace(needs, any_of=NOTHING)
    return replace(
        needs, any_of=frozenset(key if key >= 0 else words - 1 - key for key in needs.any_of)
    )


def _inner(book: Lorebook, matcher: LoreMatcher) -> tuple[Found, ...]:
    if not book.recursive_scanning:
        return (NOTHING,) * len(book.entries)
    return tuple(frozenset(matcher.matches(entry.content)) for entry in book.entries)


def _unusable(
    book: Lorebook, asked: Sequence[Needs], numbers: _Numbers, refused: Mapping[int, str]
) -> Iterable[Unusable]:
    texts = [text for text, _ in numbers.patterns]
    for entry, needs in zip(book.entries, asked, strict=True):
        for key in sorted(needs.any_of):
            if key < 0 and -1 - key in refused:
                yield Unusable(entry=entry, key=texts[-1 - key], reason=refused[-1 - key])
