"""Activation: single rules of the formats, and what strangers' keys may cost."""

from __future__ import annotations

from typing import Any

import pytest

from appliance._core import LoreMatcher
from appliance.prompt.lore import activation
from appliance.prompt.lore.activation import Before, activated
from appliance.prompt.lore.lorebook import Lorebook, read_lorebook
from appliance.prompt.lore.matching import CompiledBook


def book_of(*entries: dict[str, Any], **fields: Any) -> Lorebook:
    book = read_lorebook({"entries": list(entries), **fields})
    assert book is not None
    return book


def names(
    book: Lorebook,
    *recent: str,
    before: Before | None = None,
    seed: bytes = b"chat",
    tokens_max: int = 10_000,
) -> list[str]:
    """The names of the entries called up by texts, the newest first."""
    compiled = CompiledBook.of(book)
    called = activated(
        [compiled],
        [[compiled.found(text)] for text in recent],
        before or Before(),
        seed=seed,
        tokens_of=lambda entry: len(entry.content),
        tokens_max=tokens_max,
    )
    return [entry.name for entry in called]


def test_the_lower_insertion_order_comes_first() -> None:
    book = book_of(
        {"name": "late", "keys": ["a"], "content": "x", "insertion_order": 5},
        {"name": "early", "keys": ["a"], "content": "y", "insertion_order": -1},
    )
    assert names(book, "a") == ["early", "late"]


def test_the_budget_takes_the_least_important_first() -> None:
    book = book_of(
        {"name": "low", "keys": ["a"], "content": "xxxx", "priority": 1},
        {"name": "high", "keys": ["a"], "content": "yyyy", "priority": 9},
        {"name": "huge", "keys": ["a"], "content": "z" * 30, "priority": 99},
        token_budget=7,
    )
    assert names(book, "a") == ["high"]
    assert names(book_of(*[{"keys": ["a"], "content": "x" * 9}] * 2), "a", tokens_max=8) == []


def test_constant_entries_need_no_key_and_stand_once() -> None:
    book = book_of({"name": "always", "content": "x", "constant": True})
    assert names(book, "hello") == ["always"]
    active = frozenset({book.entries[0].digest})
    assert names(book, "hello", before=Before(active=active)) == []


def test_an_entry_whose_text_was_cut_away_comes_again() -> None:
    book = book_of({"name": "elf", "keys": ["elf"], "content": "Elves."})
    digest = frozenset({book.entries[0].digest})
    assert names(book, "elf", before=Before(active=digest, matched=digest)) == []
    assert names(book, "elf", before=Before(matched=digest)) == ["elf"]


def test_recursion_ends_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [{"name": f"e{i}", "keys": [f"<{i}>"], "content": f"<{i + 1}>"} for i in range(20)]
    book = book_of(*chain, recursive_scanning=True)
    assert names(book, "<0>") == [f"e{i}" for i in range(activation.RECURSION_MAX + 1)]
    assert names(book_of(*chain), "<0>") == ["e0"]
    fan = [{"name": f"f{i}", "keys": ["x"], "content": f"x {i}"} for i in range(9)]
    first = {"name": "first", "keys": ["go"], "content": "x"}
    monkeypatch.setattr(activation, "CALLED_MAX", 4)
    assert names(book_of(first, *fan, recursive_scanning=True), "go") == ["first", "f0", "f1", "f2"]


def test_a_chance_is_the_same_in_the_same_place_of_the_same_chat() -> None:
    chance = {"name": "maybe", "keys": ["a"], "content": "x", "extensions": {"probability": 50}}
    book = book_of(chance)
    drawn = [bool(names(book, "a", before=Before(replies=place))) for place in range(200)]
    assert drawn == [bool(names(book, "a", before=Before(replies=place))) for place in range(200)]
    assert 60 < sum(drawn) < 140
    assert drawn != [
        bool(names(book, "a", before=Before(replies=i), seed=b"other")) for i in range(200)
    ]


def test_every_key_of_an_editor_that_calls_all_keys_expressions_is_found() -> None:
    book = book_of(
        {"name": "plain", "keys": ["Dragon"], "content": "x", "use_regex": True},
        {"name": "flags", "keys": ["/dr[ae]gon/i"], "content": "y", "use_regex": True},
        {"name": "case", "keys": ["/dragon/"], "content": "z", "use_regex": True},
    )
    assert names(book, "A DRAGON") == ["plain", "flags"]


def test_an_entry_with_an_expression_that_is_refused_never_matches_and_says_why() -> None:
    entry = {"name": "bad", "keys": ["dragon", "/(?<=a)b/"], "content": "x", "use_regex": True}
    compiled = CompiledBook.of(book_of(entry))
    assert names(compiled.book, "a dragon, ab") == []
    (unusable,) = compiled.unusable
    assert (unusable.entry.name, unusable.key) == ("bad", "/(?<=a)b/")
    assert "look-around" in unusable.reason


def test_expressions_that_would_run_for_ever_elsewhere_end_at_once() -> None:
    """Counted by what is refused and found; a backtracking engine would not return from these."""
    hostile = ["/(a+)+$/", "/(a|a)*b/", "/^(([a-z])+.)+[A-Z]([a-z])+$/", "/(.*a){12}x/"]
    matcher = LoreMatcher(keys=[], patterns=[(text, False) for text in hostile])
    assert matcher.refused == []
    assert matcher.matches("a" * 200_000 + "!") == []
    assert matcher.matches("a" * 200_000) == [0]


def test_keys_that_are_each_others_beginnings_end_at_once() -> None:
    nested = [("a" * length, False, True) for length in range(1, 1001)]
    matcher = LoreMatcher(keys=nested, patterns=[])
    assert matcher.matches("a" * 200_000) == []
    assert matcher.matches("aaa") == [2]


def test_keys_are_looked_for_as_deep_as_the_book_or_the_entry_says() -> None:
    book = book_of(
        {"name": "shallow", "keys": ["elf"], "content": "x"},
        {"name": "deep", "keys": ["elf"], "content": "@@scan_depth 3\ny"},
        scan_depth=2,
    )
    assert names(book, "?", "an elf") == ["shallow", "deep"]
    assert names(book, "?", "!", "an elf") == ["deep"]
    assert names(book, "?", "!", ".", "an elf") == []
