"""Spans of time in words."""

from __future__ import annotations

import pytest

from appliance.dbops.duration import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (0.84, "0.8 s"),
        (10.2, "10 s"),
        (59.6, "1 min"),
        (61.0, "1 min 1 s"),
        (300.0, "5 min"),
        (3600.0, "1 h"),
        (3605.0, "1 h"),
        (7500.0, "2 h 5 min"),
        (86_400.0, "1 d"),
        (3.2 * 86_400, "3 d 4 h"),
        (1e9, "11574 d 1 h"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
