"""The prefix index, slow and obvious: a dict from token prefixes to cached pages.

A prefix is a tuple of (namespace, token) pairs from position 0 to the last row of a page that is
known. Every question is answered by looking at all of them; nothing is counted or kept in order.
Page ids are the real index's: the oracle is told what it answered, and says whether that was right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

Pair: TypeAlias = tuple[bytes, int]
Prefix: TypeAlias = tuple[Pair, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class CachedPage:
    """A page of the tree. Its identity stays when its prefix grows."""

    page: int
    prefix: Prefix
    last_use: tuple[bool, int] = (False, 0)
    """(whether it is not superseded, moment)"""


@dataclass(slots=True, kw_only=True, eq=False)
class Hold:
    """What a lease has: `table` in position order, an own page as its id."""

    path: Prefix
    table: list[CachedPage | int]
    hit_tokens: int
    committed: int
    full: list[CachedPage]
    source: CachedPage | None
    conversation: bytes
    continued: int | None
    has_committed: bool = False
    is_detached: bool = False

    def uses(self, cached: CachedPage) -> bool:
        return cached in self.table or cached in self.full or cached is self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """Where a released lease ended; it dies with its page."""

    path: Prefix
    page: CachedPage
    conversation: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the real index said to an admission."""

    hit_tokens: int
    copy: tuple[int, int, int] | None
    page_table: Sequence[int]


@dataclass(slots=True, kw_only=True)
class PrefixOracle:
    """See the module. Its asserts are the expectations on the real index."""

    page_size: int
    pages: int
    cached: dict[Prefix, CachedPage] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    tips: dict[int, Tip] = field(default_factory=dict)
    ticks: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
    evicted_pages: int = 0
    committed_tokens: int = 0

    def admit(
        self,
        path: Prefix,
        reserve_tokens: int,
        answer: Answer | None,
        *,
        conversation: bytes = b"",
        continued: int | None = None,
    ) -> Hold | None:
        """Judge an admission and do the same."""
        known = path[:-1]
        full = list(self._full_pages(known))
        shared = len(full) * self.page_size
        missing = -(-reserve_tokens // self.page_size) - len(full)
        rows = {cached: self._common_rows(cached, known, shared) for cached in self._all()}
        best = max(rows.values(), default=0)
        if answer is None:
            assert not self._has_room(missing, full), "refused, and there was room"
            return None
        source = tail = None
        choices = [cached for cached, common in rows.items() if common == best > 0]
        if answer.copy is not None:
            (source,) = (c for c in choices if c.page == answer.copy[0])
            assert answer.copy == (source.page, answer.page_table[len(full)], best)
            assert not self._may_go_on(source, shared + best), "no copy is needed"
        elif answer.hit_tokens > shared:
            (tail,) = (c for c in choices if c.page == answer.page_table[len(full)])
            assert self._may_go_on(tail, shared + best), "the page is another's to write"
        elif best > 0:
            assert not all(self._has_room(missing, [*full, c]) for c in choices)
        assert answer.hit_tokens == shared + (best if source or tail else 0)
        assert list(answer.page_table[: len(full)]) == [cached.page for cached in full]
        hold = Hold(
            path=path,
            table=[*full, *([tail] if tail else [])],
            hit_tokens=answer.hit_tokens,
            committed=answer.hit_tokens if tail else shared,
            full=full,
            source=source,
            conversation=conversation,
            continued=continued,
        )
        self.holds.append(hold)
        missing -= len(hold.table) - len(full)
        assert self._has_room(missing), "admitted, and there was no room"
        held = len(hold.table)
        self._take(hold, answer.page_table)
        assert len(hold.table) == held + missing
        if source is not None:
            self._touch(source.prefix)
        self.hit_tokens += hold.hit_tokens
        self.miss_tokens += len(path) - hold.hit_tokens
        return hold

    def grow(self, hold: Hold, tokens: int, page_table: Sequence[int] | None) -> None:
        """Judge a growth (`page_table`: the new one, None when it was refused) and do the same."""
        missing = max(0, -(-tokens // self.page_size) - len(hold.table))
        assert self._has_room(missing) == (page_table is not None)
        if page_table is not None:
            assert len(page_table) == len(hold.table) + missing
            self._take(hold, page_table)

    def commit(self, hold: Hold, path: Prefix) -> None:
        """Put the pages of `path` into the dict."""
        hold.path = max(hold.path, path, key=len)
        if len(path) <= hold.committed or hold.is_detached:
            return
        self.committed_tokens += max(0, len(path) - max(hold.committed, hold.hit_tokens))
        hold.source = None
        hold.has_committed = True
        for start in range(
            hold.committed // self.page_size * self.page_size, len(path), self.page_size
        ):
            prefix = path[: start + self.page_size]
            page = self._commit_page(hold, prefix)
            if len(prefix) == start + self.page_size:
                hold.full.append(page)
        hold.committed = len(path)
        self._drop_superseded()

    def release(self, hold: Hold, node: int) -> None:
        """Give everything back; `node`: the lease's number, for its tip."""
        tail = self._tail(hold)
        last = tail or (hold.full[-1] if hold.full else None)
        if last is not None:
            self._touch(last.prefix)
            if hold.has_committed and len(last.prefix) == hold.committed:
                self._add_tip(hold, node, last)
        self.holds.remove(hold)
        self._drop_superseded()

    def _add_tip(self, hold: Hold, node: int, page: CachedPage) -> None:
        """A conversation keeps its newest tip and the one continued to it, a page the newest."""
        alive = self._live_tips()
        outdated = []
        for number, other in list(self.tips.items()):
            is_outdated = hold.conversation and other.conversation == hold.conversation
            if is_outdated and number != hold.continued:
                outdated += [other] if number in alive else []
                del self.tips[number]
            elif other.page is page:
                del self.tips[number]
        self.tips[node] = Tip(path=page.prefix, page=page, conversation=hold.conversation)
        for other in outdated:
            self._supersede(other)

    def _supersede(self, old: Tip) -> None:
        """Where a conversation went before goes first, but for what a tip or a lock is on."""
        tips = [self.tips[number] for number in self._live_tips()]
        for cached in self._all():
            kept = any(_is_on(tip, cached) for tip in tips) or self._is_protected(cached)
            if _is_on(old, cached) and not kept:
                cached.last_use = (False, cached.last_use[1])

    def tip(self, node: int) -> Prefix | None:
        """The path to a tip, if it is known."""
        return self._live_tips().get(node)

    def _live_tips(self) -> dict[int, Prefix]:
        pages = set(map(id, self._all()))
        return {node: tip.path for node, tip in self.tips.items() if id(tip.page) in pages}

    def quarantine(self, wrong: Prefix) -> int:
        """Every page whose prefix begins with `wrong` goes; who holds one commits no more."""
        gone = [cached for cached in self._all() if cached.prefix[: len(wrong)] == wrong]
        for cached in gone:
            del self.cached[cached.prefix]
        for hold in self.holds:
            if not any(hold.uses(cached) for cached in gone):
                continue
            hold.table = [p.page if p in gone and not isinstance(p, int) else p for p in hold.table]
            hold.full = [*takewhile(lambda cached: cached not in gone, hold.full)]
            hold.source = None if hold.source in gone else hold.source
            hold.is_detached = True
            hold.has_committed = False
        self._drop_superseded()
        return len(gone)

    def clear(self) -> int:
        """Drop what nobody uses."""
        unused = [cached for cached in self._all() if not self._is_protected(cached)]
        for cached in unused:
            del self.cached[cached.prefix]
        return len(unused)

    def stats(self) -> dict[str, int]:
        """As `PrefixIndex.stats`, but for the nodes."""
        return {
            "pages_total": self.pages,
            "pages_free": self._free(),
            "pages_cached": len(self.cached),
            "pages_leased": self.pages - self._free() - len(self.cached),
            "pages_evictable": sum(not self._is_protected(cached) for cached in self._all()),
            "tips": len(self._live_tips()),
            "hit_tokens": self.hit_tokens,
            "miss_tokens": self.miss_tokens,
            "resumed_tokens": 0,
            "recomputed_tokens": 0,
            "pages_pinned": 0,
            "pages_host": 0,
            "pages_disk": 0,
            "onloaded_tokens": 0,
            "offloaded_pages": 0,
            "dropped_pages": 0,
            "evicted_pages": self.evicted_pages,
            "committed_tokens": self.committed_tokens,
        }

    def _all(self) -> list[CachedPage]:
        return list(self.cached.values())

    def _before(self, prefix: Prefix) -> Prefix:
        """The positions before the prefix's last page."""
        return prefix[: (len(prefix) - 1) // self.page_size * self.page_size]

    def _full_pages(self, path: Prefix) -> Iterator[CachedPage]:
        ends = range(self.page_size, len(path) + 1, self.page_size)
        found = (self.cached.get(path[:end]) for end in ends)
        return (cached for cached in takewhile(bool, found) if cached)

    def _common_rows(self, cached: CachedPage, path: Prefix, shared: int) -> int:
        if self._before(cached.prefix) != path[:shared]:
            return 0
        pairs = zip(cached.prefix, path, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - shared

    def _is_protected(self, cached: CachedPage, also_used: Sequence[CachedPage] = ()) -> bool:
        """Whether a lease (or `also_used`) has the page or one below it."""
        full = len(cached.prefix) % self.page_size == 0
        for other in self.cached.values():
            below = full and self._before(other.prefix)[: len(cached.prefix)] == cached.prefix
            used = other in also_used or any(hold.uses(other) for hold in self.holds)
            if used and (other is cached or below):
                return True
        return False

    def _may_go_on(self, cached: CachedPage, tokens: int) -> bool:
        """Whether a sequence with `tokens` positions of its prefix may write on in the page."""
        writes = any(cached in hold.table for hold in self.holds)
        return len(cached.prefix) == tokens and tokens % self.page_size != 0 and not writes

    def _free(self) -> int:
        own = {place for hold in self.holds for place in hold.table if isinstance(place, int)}
        return self.pages - len(self.cached) - len(own)

    def _has_room(self, pages: int, also_used: Sequence[CachedPage] = ()) -> bool:
        unused = sum(not self._is_protected(cached, also_used) for cached in self._all())
        return self._free() + unused >= pages

    def _take(self, hold: Hold, page_table: Sequence[int]) -> None:
        """Extend the table to `page_table`, evicting unused leaves, least recently used first."""
        new = list(page_table[len(hold.table) :])
        while self._free() < len(new):
            parents = {self._before(cached.prefix) for cached in self._all()}
            leaves = [
                c for c in self._all() if c.prefix not in parents and not self._is_protected(c)
            ]
            leaf = min(leaves, key=lambda cached: cached.last_use)
            del self.cached[leaf.prefix]
            above = self.cached.get(self._before(leaf.prefix))
            if above is not None:
                above.last_use = max(above.last_use, leaf.last_use)
            self.evicted_pages += 1
        taken = {cached.page for cached in self._all()}
        taken.update(p for other in self.holds for p in other.table if isinstance(p, int))
        assert taken.isdisjoint(new), "a page is in two places"
        hold.table.extend(new)

    def _tail(self, hold: Hold) -> CachedPage | None:
        place = hold.table[len(hold.full)] if len(hold.full) < len(hold.table) else None
        return place if isinstance(place, CachedPage) else None

    def _commit_page(self, hold: Hold, prefix: Prefix) -> CachedPage:
        for cached in self._all():
            same_page = self._before(cached.prefix) == self._before(prefix)
            if same_page and cached.prefix[: len(prefix)] == prefix:
                return cached
        index = (len(prefix) - 1) // self.page_size
        place = hold.table[index]
        if isinstance(place, int):
            place = CachedPage(page=place, prefix=prefix)
            hold.table[index] = place
        else:
            del self.cached[place.prefix]
            place.prefix = prefix
        self.cached[prefix] = place
        return place

    def _touch(self, prefix: Prefix) -> None:
        self.ticks += 1
        for cached in self._all():
            # A partial page with the first rows of another page is not on that page's path.
            is_page = len(cached.prefix) % self.page_size == 0 or len(cached.prefix) == len(prefix)
            if is_page and prefix[: len(cached.prefix)] == cached.prefix:
                cached.last_use = max(cached.last_use, (True, self.ticks))

    def _drop_superseded(self) -> None:
        for cached in self._all():
            longer = any(
                other is not cached
                and self._before(other.prefix) == self._before(cached.prefix)
                and other.prefix[: len(cached.prefix)] == cached.prefix
                for other in self._all()
            )
            if longer and not self._is_protected(cached):
                del self.cached[cached.prefix]


def _is_on(tip: Tip, cached: CachedPage) -> bool:
    return tip.page is cached or tip.path[: len(cached.prefix)] == cached.prefix
