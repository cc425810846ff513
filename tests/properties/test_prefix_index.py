"""The prefix index: random use against the slow oracle and against simulated page contents."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import groupby

import pytest

from appliance import _core
from appliance.tokens import pack, unpack
from tests.reference.prefix_index import Answer, Hold, Prefix, PrefixOracle

NAMESPACES = (b"public", b"tenant a", b"tenant b")


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A running sequence, as an engine has it. `computed`: leading tokens whose rows are written."""

    lease: _core.Lease
    hold: Hold
    path: Prefix
    computed: int
    copied: bool = False

    @property
    def page_table(self) -> list[int]:
        return list(unpack(self.lease.page_table))


class World:
    """The index, its oracle, and a device whose rows hold the prefix they were computed from."""

    def __init__(self, *, seed: int, page_size: int, pages: int) -> None:
        self.random = random.Random(seed)
        self.page_size = page_size
        self.index = _core.PrefixIndex(page_size=page_size, pages=pages)
        self.oracle = PrefixOracle(page_size=page_size, pages=pages)
        self.sequences: list[Sequence] = []
        self.device: dict[tuple[int, int], Prefix] = {}
        self.paths: list[Prefix] = [()]
        self.nodes: list[int] = []

    def step(self) -> None:
        """One random operation."""
        deed = self.random.choices(
            (self.compute, self.commit, self.release, self.drop, None), weights=(8, 8, 2, 2, 6)
        )[0]
        if deed is not None and self.sequences:
            deed(self.random.choice(self.sequences))
        elif self.random.random() < 0.05:
            self.clear()
        elif self.random.random() < 0.1:
            self.quarantine(self.random.choice(self.paths))
        elif self.nodes and self.random.random() < 0.4:
            self.go_on(self.random.choice(self.nodes[-4:]))
        else:
            self.admit(self.new_path())

    def go_on(self, node: int) -> None:
        """After a tip: as an admission of the whole path."""
        known = self.oracle.tip(node)
        assert self.index.node_tokens(node) == (None if known is None else len(known))
        if known is None:
            with pytest.raises(LookupError):
                self.index.admit(b"", [], 1, after=node)
        else:
            new = self.random.choice((self.new_path(), ()))
            self.admit(known + new, after=(node, len(known)))

    def new_path(self) -> Prefix:
        """Goes on from a cut of an earlier path, with few namespaces and fewer tokens."""
        earlier = self.random.choice(self.paths)
        path = list(earlier[: self.random.randint(0, len(earlier))])
        for _ in range(self.random.randint(1, 3)):
            namespace = self.random.choice(NAMESPACES)
            path += [
                (namespace, self.random.randint(0, 1)) for _ in range(self.random.randint(1, 7))
            ]
        return tuple(path)

    def admit(self, path: Prefix, after: tuple[int, int] | None = None) -> None:
        """`after`: a tip, and its tokens, which the path begins with."""
        reserve_tokens = len(path) + self.random.randint(0, 6)
        if reserve_tokens > self.page_size * self.oracle.pages:
            return
        node, before = after or (None, 0)
        stretches = [
            (name, len(list(run))) for name, run in groupby(path[before:], key=lambda pair: pair[0])
        ]
        conversation = self.random.choice((b"", b"a", b"b"))
        lease = self.index.admit(
            pack(token for _, token in path[before:]),
            stretches,
            reserve_tokens,
            after=node,
            conversation=conversation,
        )
        if lease is None:
            self.oracle.admit(path, reserve_tokens, None)
            return
        table = list(unpack(lease.page_table))
        answer = Answer(hit_tokens=lease.hit_tokens, copy=lease.copy, page_table=table)
        hold = self.oracle.admit(
            path, reserve_tokens, answer, conversation=conversation, continued=node
        )
        assert hold is not None
        assert lease.hit_tokens < len(path), "one token is always computed"
        assert lease.prompt_tokens == len(path)
        self.forget(table[-(-hold.committed // self.page_size) :])
        self.sequences.append(
            Sequence(lease=lease, hold=hold, path=path, computed=lease.hit_tokens)
        )

    def forget(self, pages: list[int]) -> None:
        """What was in pages that the index gave out as fresh is lost."""
        for page in pages:
            for row in range(self.page_size):
                self.device.pop((page, row), None)

    def copy_first(self, sequence: Sequence) -> None:
        if not sequence.copied and sequence.lease.copy is not None:
            source, target, rows = sequence.lease.copy
            for row in range(rows):
                self.device[target, row] = self.device[source, row]
        sequence.copied = True

    def compute(self, sequence: Sequence) -> None:
        """Write K/V of some more tokens: of the prompt, then of a reply, growing if needed."""
        self.copy_first(sequence)
        for _ in range(self.random.randint(1, 7)):
            position = sequence.computed
            if position == sequence.lease.tokens_reserved and not self.grow(sequence):
                break
            if position == len(sequence.path):
                token = self.random.randint(0, 1)
                sequence.lease.append(pack([token]))
                sequence.path += ((sequence.path[-1][0], token),)
            page = sequence.page_table[position // self.page_size]
            row = position % self.page_size
            self.assert_writable(sequence, page, row)
            self.device[page, row] = sequence.path[: position + 1]
            sequence.computed += 1

    def grow(self, sequence: Sequence) -> bool:
        before = sequence.page_table
        tokens = sequence.computed + self.random.randint(1, 4)
        grown = sequence.lease.grow(tokens)
        after = sequence.page_table
        assert after[: len(before)] == before, "a page table changed"
        self.oracle.grow(sequence.hold, tokens, after if grown else None)
        self.forget(after[len(before) :])
        return grown

    def assert_writable(self, writer: Sequence, page: int, row: int) -> None:
        for cached in self.oracle.cached.values():
            known_rows = (len(cached.prefix) - 1) % self.page_size + 1
            assert cached.page != page or row >= known_rows, "a committed row is written again"
        for other in self.sequences:
            assert other is writer or page not in other.page_table, "two sequences write one page"

    def commit(self, sequence: Sequence) -> None:
        self.copy_first(sequence)
        back = self.random.choice((0, 0, 0, 1, 3))
        path = sequence.path[: max(0, sequence.computed - back)]
        before = sequence.page_table
        sequence.lease.commit(len(path))
        assert sequence.page_table == before, "a page table changed"
        self.oracle.commit(sequence.hold, path)
        self.paths.append(path)

    def release(self, sequence: Sequence) -> None:
        sequence.lease.release()
        sequence.lease.release()
        self.forget_sequence(sequence)

    def drop(self, sequence: Sequence) -> None:
        """The lease goes with its last reference."""
        self.forget_sequence(sequence)
        del sequence.lease

    def forget_sequence(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)
        self.oracle.release(sequence.hold, sequence.lease.node)
        self.nodes.append(sequence.lease.node)

    def clear(self) -> None:
        assert self.index.clear() == self.oracle.clear()

    def quarantine(self, path: Prefix) -> None:
        """A random position is wrong."""
        for sequence in self.sequences:
            self.copy_first(sequence)
        stretches = [
            (name, len(list(run))) for name, run in groupby(path, key=lambda pair: pair[0])
        ]
        token_ids = pack(token for _, token in path)
        if not path:
            with pytest.raises(ValueError, match="at least one token"):
                self.index.quarantine(token_ids, stretches, 0)
            return
        position = self.random.randrange(len(path))
        dropped = self.index.quarantine(token_ids, stretches, position)
        assert dropped == self.oracle.quarantine(path[: position + 1])

    def verify(self) -> None:
        """The accounting, the oracle, and the contents of every row that somebody may read."""
        self.index.check()
        stats = self.index.stats()
        assert stats.pop("nodes") <= stats["pages_cached"]
        assert stats == self.oracle.stats()
        for cached in self.oracle.cached.values():
            first = (len(cached.prefix) - 1) // self.page_size * self.page_size
            for position in range(first, len(cached.prefix)):
                row = position % self.page_size
                assert self.device[cached.page, row] == cached.prefix[: position + 1]
        for sequence in self.sequences:
            assert list(unpack(sequence.lease.token_ids())) == [t for _, t in sequence.path]
            table = sequence.page_table
            places = [p if isinstance(p, int) else p.page for p in sequence.hold.table]
            assert table == places
            readable = sequence.computed
            if not sequence.copied and sequence.lease.copy is not None:
                source, _, rows = sequence.lease.copy
                readable -= rows
                for row in range(rows):
                    assert self.device[source, row] == sequence.path[: readable + row + 1]
            for position in range(readable):
                content = self.device[table[position // self.page_size], position % self.page_size]
                assert content == sequence.path[: position + 1]


@pytest.mark.parametrize("seed", range(40))
def test_random_use_agrees_with_the_oracle_and_every_row_holds_its_prefix(seed: int) -> None:
    shape = random.Random(seed)
    world = World(seed=seed, page_size=shape.randint(1, 5), pages=shape.randint(2, 13))
    for _ in range(100):
        world.step()
        world.verify()
    while world.sequences:
        world.drop(world.sequences[0])
        world.verify()
    stats = world.index.stats()
    assert stats["pages_leased"] == 0
    assert stats["pages_evictable"] == stats["pages_cached"]
    world.clear()
    assert world.index.stats()["pages_free"] == world.oracle.pages
