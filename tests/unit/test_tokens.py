"""Packed token ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.tokens import common, pack


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_common_ids_are_those_before_the_first_that_differs(a: list[int], b: list[int]) -> None:
    same = [x == y for x, y in zip(a, b, strict=False)]
    assert common(pack(a), pack(b)) == [*same, False].index(False)
