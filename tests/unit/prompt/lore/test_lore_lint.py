"""What lint says of lorebooks."""

from __future__ import annotations

from typing import Any

from appliance.prompt.lore.books import Lore
from appliance.prompt.lore.lint import lore_findings
from appliance.prompt.lore.lorebook import read_lorebook
from appliance.prompt.lore.placement import Placement


def sentences(*entries: dict[str, Any], placement: Placement = Placement.FROZEN) -> list[str]:
    book = read_lorebook({"entries": list(entries)})
    assert book is not None
    return [found.sentence for found in lore_findings(Lore.of([book], placement), "lore.json")]


def test_an_entry_that_can_never_match_is_named_with_its_reason() -> None:
    expression, keyless, blank, odd = sentences(
        {"name": "a", "keys": ["/a(?=b)/"], "content": "x", "use_regex": True},
        {"name": "b", "content": "x"},
        {"name": "c", "keys": ["c"], "content": " "},
        {"name": "d", "keys": ["d"], "content": "@@somebodys_own 1\nx"},
    )
    assert expression.startswith("lore.json: entry 'a' never matches: its expression '/a(?=b)/'")
    assert "look-around" in expression
    assert "entry 'b' has no keys and is not constant" in keyless
    assert "entry 'c' says nothing" in blank
    assert "entry 'd': not understood: @@somebodys_own 1" in odd


def test_entries_that_move_say_what_they_cost_and_frozen_ones_cost_nothing() -> None:
    entries = (
        {"name": "deep", "keys": ["a"], "content": "@@depth 4\nx"},
        {"name": "last", "keys": ["a"], "content": "@@depth 0\nx"},
        {"name": "top", "keys": ["a"], "content": "x"},
    )
    deep, top = sentences(*entries, placement=Placement.AS_WRITTEN)
    assert "'deep' stands 4 messages deep" in deep
    assert "the last 4 messages again" in deep
    assert "'top' stands before the messages" in top
    assert "the whole history is computed again, up to 8000 tokens" in top
    assert sentences(*entries) == []
