"""Entries without a key, and expressions, in numbers: what is measured and refused, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.prompt.lore.activation import MEASURED_MAX, Before, activated
from appliance.prompt.lore.lorebook import LoreEntry, read_lorebook
from appliance.prompt.lore.matching import CompiledBook

SIZE = 10
BUDGET = 300


class Book:
    """A compiled book whose every entry is of SIZE tokens unless it says so; counts what is measured."""

    def __init__(self, entries: Sequence[dict[str, Any]], **fields: Any) -> None:
        book = read_lorebook({"entries": list(entries), "token_budget": BUDGET, **fields})
        assert book is not None
        self.compiled = CompiledBook.of(book)
        self.measured = 0

    def called(self, before: Before | None = None, text: str = "") -> list[str]:
        """The names called up by a message, in their order."""
        return [entry.name for entry in self.turn(before, text)]

    def turn(self, before: Before | None = None, text: str = "") -> tuple[LoreEntry, ...]:
        return activated(
            [self.compiled],
            [[self.compiled.found(text)]],
            before or Before(),
            seed=b"chat",
            tokens_of=self.tokens_of,
            tokens_max=10_000,
        )

    def tokens_of(self, entry: LoreEntry) -> int:
        self.measured += 1
        return int(entry.content) if entry.content.isdigit() else SIZE


def constant(number: int, **fields: Any) -> dict[str, Any]:
    return {"name": f"c{number}", "content": f"say {number}", "constant": True, **fields}


def test_thousands_of_constants_are_measured_as_far_as_they_fit() -> None:
    book = Book([constant(number, priority=number) for number in range(9_000)])
    fit = BUDGET // SIZE
    assert book.called() == [f"c{number}" for number in range(9_000 - fit, 9_000)]
    assert book.measured < 5 * fit


def test_entries_that_are_too_large_alone_are_looked_at_up_to_a_bound() -> None:
    huge = [constant(number, content=str(BUDGET + 1), priority=9) for number in range(3_000)]
    book = Book([*huge, constant(1)])
    assert book.called() == []
    assert book.measured <= 2 * MEASURED_MAX
    assert Book([*huge[:5], constant(1)]).called() == ["c1"]


def test_constants_that_did_not_fit_do_not_come_with_the_next_messages() -> None:
    book = Book([constant(number, priority=number) for number in range(100)])
    first = book.turn()
    assert sum(map(book.tokens_of, first)) == BUDGET
    stands = Before().after(first)
    assert book.turn(stands) == ()
    # A cut took some away: these come again, and no others.
    left = frozenset(sorted(stands.active)[:10])
    again = book.turn(Before(active=left))
    assert {entry.digest for entry in again} == stands.active - left


def test_a_constant_that_may_not_stand_now_takes_no_room_from_others() -> None:
    waits = constant(0, content=f"@@activate_only_after 3\n{BUDGET}", priority=9)
    other = constant(1, content=f"@@is_greeting 1\n{BUDGET - 1}", priority=8)
    book = Book([waits, other, constant(2, priority=1)])
    assert book.called(Before(greeting=0)) == ["c2"]
    assert book.called(Before(greeting=1)) == ["c1"]
    assert book.called(Before(greeting=0, replies=3)) == ["c0"]


def test_constants_leave_the_entries_that_are_called_up_their_rank() -> None:
    key = {"name": "key", "keys": ["owl"], "content": "x", "priority": 500}
    book = Book([key, *(constant(number, priority=number) for number in range(100))])
    called = book.called(text="an owl")
    assert "key" in called
    assert len(called) == BUDGET // SIZE


def test_expressions_beyond_a_books_room_are_refused_by_name_and_the_others_match() -> None:
    patterns = [rf"<{number}>[a-z\u0400-\u04FF]{{40}}" for number in range(600)]
    entries = [
        {"name": f"e{number}", "keys": [pattern], "content": "x", "use_regex": True}
        for number, pattern in enumerate(patterns)
    ]
    plain = {"name": "plain", "keys": ["owl"], "content": "x"}
    book = CompiledBook.of(read_lorebook({"entries": [plain, *entries]}))  # type: ignore[arg-type]
    refused = [unusable.entry.name for unusable in book.unusable]
    kept = 600 - len(refused)
    assert 5 < kept < 600
    assert refused == [f"e{number}" for number in range(kept, 600)]
    assert all("leave no room" in unusable.reason for unusable in book.unusable)
    found = book.found(f"owl <0>{'a' * 40} <{kept - 1}>{'b' * 40} <{kept}>{'c' * 40}")
    called = {index for key in found for index in book.called.get(key, ())}
    assert [book.book.entries[index].name for index in sorted(called)] == [
        "plain",
        "e0",
        f"e{kept - 1}",
    ]
