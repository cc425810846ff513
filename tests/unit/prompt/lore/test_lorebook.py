"""Lorebooks as strangers' editors write them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.errors import InvalidRequest
from appliance.prompt.lore import lorebook
from appliance.prompt.lore.decorators import Decorators, split
from appliance.prompt.lore.lorebook import Lorebook, read_lorebook


def book_of(*entries: dict[str, Any], **fields: Any) -> Lorebook:
    book = read_lorebook({"entries": list(entries), **fields})
    assert book is not None
    return book


def test_the_fields_of_both_formats_are_read() -> None:
    entry = {
        "keys": ["dragon", " wyrm "],
        "secondary_keys": ["fire"],
        "selective": True,
        "content": "Dragons sleep.",
        "constant": True,
        "enabled": False,
        "insertion_order": 7,
        "priority": 3,
        "position": "before_char",
        "case_sensitive": True,
        "use_regex": True,
        "comment": "About dragons",
        "extensions": {"match_whole_words": True, "probability": 50, "unknown": [1]},
        "unknown": {},
    }
    book = book_of(
        entry, name="World", scan_depth=5, token_budget=300, recursive_scanning=True, extensions={}
    )
    (read,) = book.entries
    assert (book.name, book.scan_depth, book.token_budget) == ("World", 5, 300)
    assert book.recursive_scanning
    assert (read.name, read.keys, read.secondary_keys) == (
        "About dragons",
        ("dragon", "wyrm"),
        ("fire",),
    )
    assert (read.selective, read.constant, read.enabled) == (True, True, False)
    assert (read.insertion_order, read.priority, read.position) == (7, 3, "before_char")
    assert (read.case_sensitive, read.whole_words, read.use_regex) == (True, True, True)
    assert read.probability == 50


def test_a_file_of_its_own_is_the_same_book() -> None:
    inner = {"entries": [{"keys": ["a"], "content": "b"}]}
    assert read_lorebook({"spec": "lorebook_v3", "data": inner}) == read_lorebook(inner)


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_book_is_no_fault(nothing: Any) -> None:
    assert read_lorebook(nothing) is None


@pytest.mark.parametrize("entries", [None, "", [], {}])
def test_a_book_may_have_no_entries(entries: Any) -> None:
    book = read_lorebook({"entries": entries})
    assert book is not None
    assert book.entries == ()


def test_what_editors_write_for_nothing_is_nothing() -> None:
    blank = {"keys": "", "content": None, "insertion_order": "", "priority": "", "constant": ""}
    book = book_of(
        {**blank, "secondary_keys": None, "extensions": None, "id": ""},
        name=None,
        scan_depth="",
        token_budget=0,
        recursive_scanning="",
    )
    (entry,) = book.entries
    assert (entry.keys, entry.content, entry.insertion_order) == ((), "", 0)
    assert (entry.priority, entry.constant, entry.name) == (None, False, "entry 1")
    assert (book.scan_depth, book.token_budget) == (lorebook.SCAN_DEPTH_DEFAULT, None)


def test_texts_stand_for_numbers_flags_and_lists() -> None:
    book = book_of(
        {"keys": "a, b,,", "content": 5, "enabled": "false", "insertion_order": "-2.5"},
        scan_depth="9999",
        recursive_scanning="true",
    )
    (entry,) = book.entries
    assert (entry.keys, entry.content) == (("a", "b"), "5")
    assert (entry.enabled, entry.insertion_order) == (False, -2.5)
    assert (book.scan_depth, book.recursive_scanning) == (lorebook.SCAN_DEPTH_MAX, True)


def test_an_editors_own_depth_counts_where_no_decorator_says_one() -> None:
    more = {"position": 4, "depth": 2, "role": 1}
    own, decorated = book_of(
        {"keys": ["a"], "content": "x", "extensions": more},
        {"keys": ["a"], "content": "@@depth 7\nx", "extensions": more},
    ).entries
    assert (own.decorators.depth, own.decorators.role) == (2, "user")
    assert (decorated.decorators.depth, decorated.decorators.role) == (7, None)


@pytest.mark.parametrize(
    ("book", "path", "sentence"),
    [
        ([], "character_book", "expected an object"),
        ({"entries": "x"}, "character_book.entries", "list of entries"),
        ({"entries": [7]}, "character_book.entries[0]", "expected an object"),
        ({"entries": [{"keys": 7}]}, "character_book.entries[0].keys", "list of texts"),
        ({"entries": [{"keys": ["a", []]}]}, "character_book.entries[0].keys[1]", "a text"),
        ({"entries": [{"content": {}}]}, "character_book.entries[0].content", "a text"),
        ({"entries": [{"priority": "x"}]}, "character_book.entries[0].priority", "a number"),
        ({"entries": [{"priority": "inf"}]}, "character_book.entries[0].priority", "a number"),
        ({"entries": [{"constant": "x"}]}, "character_book.entries[0].constant", "true or false"),
        ({"entries": [{"keys": ["a"] * 257}]}, "character_book.entries[0].keys", "at most 256"),
        ({"entries": [{"keys": ["é" * 501]}]}, "character_book.entries[0].keys[0]", "1000 bytes"),
        ({"entries": [{"content": "x" * 65_537}]}, "character_book.entries[0].content", "65536"),
        ({"entries": [{"content": "\ud800"}]}, "character_book.entries[0].content", "half of a"),
        ({"entries": [{}] * 10_001}, "character_book.entries", "at most 10000 entries"),
        ({"entries": [], "scan_depth": []}, "character_book.scan_depth", "a number"),
    ],
)
def test_what_cannot_be_read_is_refused_by_entry_field_and_limit(
    book: Any, path: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as caught:
        read_lorebook(book)
    assert caught.value.param == path
    assert caught.value.message.startswith(path)


def test_a_refusal_says_the_entrys_name() -> None:
    with pytest.raises(InvalidRequest, match=r"entries\[0\].keys \(The inn\): expected"):
        book_of({"name": "The inn", "keys": 7})


def test_a_book_is_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lorebook, "BOOK_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match="at most 10 bytes in all, these are 11"):
        book_of({"keys": ["a"], "content": "12345"}, {"content": "12345"})


def test_an_entrys_digest_is_that_of_what_it_says_wherever_it_stands() -> None:
    entry = {"keys": ["a"], "content": "x"}
    first = book_of(entry, {"keys": ["b"], "content": "x"})
    second = book_of({"keys": ["c"], "content": "x"}, {**entry, "name": "moved"})
    assert first.entries[0].digest == second.entries[1].digest
    assert len({entry.digest for entry in (*first.entries, *second.entries)}) == 3


def test_decorators_are_taken_off_the_content() -> None:
    decorators, content = split(
        "@@depth 4\n@@role user\n@@scan_depth 3\n@@additional_keys a, b\n@@additional_keys c\n"
        "@@exclude_keys x,y\n@@dont_activate_after_match\n@@is_greeting 0\n\nThe text.\n@@depth 1\n"
    )
    assert content == "The text.\n@@depth 1"
    assert decorators == Decorators(
        depth=4,
        role="user",
        scan_depth=3,
        additional_keys=(("a", "b"), ("c",)),
        exclude_keys=("x", "y"),
        dont_activate_after_match=True,
        is_greeting=0,
    )


def test_a_content_without_decorators_is_left_as_it_is() -> None:
    for text in ("plain ", "\n two", "", "@ one", "a\n@@depth 1"):
        assert split(text) == (Decorators(), text)


def test_the_first_of_a_name_counts() -> None:
    assert split("@@depth 1\n@@depth 2\nx")[0].depth == 1


def test_a_fallback_stands_in_for_what_is_not_known_or_wrong() -> None:
    chain = "".join(f"@@@other_{index} 1\n" for index in range(6))
    decorators, content = split(f"@@somebodys_own 4\n{chain}@@@depth 2\n@@@scan_depth 9\nx")
    assert (decorators.depth, decorators.scan_depth, content) == (2, None, "x")
    assert decorators.ignored[:2] == ("@@somebodys_own 4", "@@@other_0 1")
    assert split("@@depth much\n@@@depth 3\nx")[0].depth == 3
    assert split("@@activate_only_every 0\n@@@activate_only_every 2\nx")[0].activate_only_every == 2
    assert split("@@depth 1\n@@@depth 9\n@@scan_depth 2\nx")[0] == Decorators(depth=1, scan_depth=2)
