"""What differs between two versions, for a person to read."""

from __future__ import annotations

import json
from typing import Any

from appliance.prompt.bundle import Bundle
from appliance.prompt.bundle_diff import unified
from tests.card_fixtures import v2


def card(**data: Any) -> Bundle:
    return Bundle(name="mira", files={"card.json": json.dumps(v2(**data)).encode()})


def test_a_cards_difference_is_told_by_field_and_by_line_of_a_text() -> None:
    before = card(description="Calm.\nLikes tea.", tags=["calm"])
    after = card(description="Calm.\nLikes rain.", tags=["calm", "wet"])
    lines = unified(before, after).splitlines()
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-  Likes tea.", "+  Likes rain.", "+data.tags[1]: wet"]
    assert " data.description:" in lines
    assert max(map(len, lines)) < 80


def test_what_only_looks_different_is_told_as_that() -> None:
    one = card()
    other = Bundle(name="mira", files={"card.json": json.dumps(v2(), indent=1).encode()})
    assert unified(one, other) == "a/card.json -> b/card.json: how it is written differs"


def test_files_that_are_no_json_and_no_text_are_told_by_lines_and_sizes() -> None:
    before = Bundle(name="m", files={"a.json": b"{", "b.png": b"\xff", "c.yaml": b"x: 1\n"})
    after = Bundle(name="m", files={"a.json": b"[", "b.png": b"\xff\xff"})
    assert unified(before, after).splitlines() == [
        "--- a/a.json",
        "+++ b/a.json",
        "@@ -1 +1 @@",
        "-{",
        "+[",
        "a/b.png 1 bytes -> b/b.png 2 bytes",
        "--- a/c.yaml",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-x: 1",
    ]


def test_a_nesting_without_end_is_shown_and_ends() -> None:
    deep = Bundle(name="m", files={"card.json": b"[" * 900 + b"1" + b"]" * 900})
    assert "[0][0]" in unified(card(), deep)
