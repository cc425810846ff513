"""Truncation of long conversations: the sticky sawtooth keeps its promises."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ContextLengthExceeded
from appliance.prompt.truncate import Turn, Window, first_kept, window

turn = st.builds(Turn, opening=st.integers(1, 60), answer=st.integers(0, 90))
windows = st.builds(
    Window, limit=st.integers(300, 600), reserve=st.integers(0, 80), step=st.integers(0, 100)
)
PROTECTED = (("system", 40), ("reply header", 5))


def prompt_tokens(turns: list[Turn], kept: int) -> int:
    """Tokens of the prompt for a reply to the last turn."""
    fixed = sum(tokens for _, tokens in PROTECTED)
    return fixed + sum(t.opening + t.answer for t in turns[kept:-1]) + turns[-1].opening


@given(turns=st.lists(turn, min_size=1, max_size=60), space=windows)
def test_a_prompt_never_exceeds_the_room_and_keeps_the_newest_turn(
    turns: list[Turn], space: Window
) -> None:
    kept = first_kept(turns, PROTECTED, space)
    assert 0 <= kept < len(turns)
    assert prompt_tokens(turns, kept) <= space.room


@given(turns=st.lists(turn, min_size=2, max_size=60), space=windows)
def test_the_first_kept_turn_only_moves_forward_and_only_when_the_window_is_full(
    turns: list[Turn], space: Window
) -> None:
    before = 0
    for length in range(1, len(turns) + 1):
        now = first_kept(turns[:length], PROTECTED, space)
        if now != before:
            assert now > before
            assert prompt_tokens(turns[:length], before) > space.room
            # Down to the low-water mark, and not one turn further.
            low = space.room - space.step
            assert prompt_tokens(turns[:length], now) <= low or now == length - 1
            assert prompt_tokens(turns[:length], now - 1) > low
        before = now


@given(turns=st.lists(turn, min_size=1, max_size=60), space=windows, cut=st.integers(0, 59))
def test_going_on_from_a_known_cut_gives_the_same_cut_as_the_whole_path(
    turns: list[Turn], space: Window, cut: int
) -> None:
    known = first_kept(turns[: cut % len(turns) + 1], PROTECTED, space)
    assert first_kept(turns, PROTECTED, space, start=known) == first_kept(turns, PROTECTED, space)


def test_a_long_chat_moves_its_cut_once_a_step_and_stays_cached() -> None:
    space = Window(limit=2000, reserve=0, step=500)
    protected = (("system", 120), ("reply", 5))
    turns: list[Turn] = []
    cuts, cached, total, previous = [0], 0, 0, 0
    for _ in range(200):
        turns.append(Turn(opening=25, answer=25))
        kept = first_kept(turns, protected, space)
        tokens = 125 + 50 * (len(turns) - 1 - kept) + 25
        assert tokens <= 2000
        # The prompt before is a prefix of this one unless the cut moved; then only the system text is.
        cached += 120 if kept != cuts[-1] else min(previous, tokens)
        total += tokens
        previous = tokens + 25
        cuts.append(kept)
    overflow = 125 + 50 * 200 - 2000
    changes = sum(a != b for a, b in pairwise(cuts))
    assert 0 < changes <= math.ceil(overflow / 500)
    assert cached / total >= 0.85


def test_protected_parts_that_do_not_fit_are_named_with_their_sizes_every_time() -> None:
    space = Window(limit=100, reserve=0, step=25)
    protected = (("system", 90), ("persona", 30), ("reply", 5))
    messages = set()
    for _ in range(3):
        with pytest.raises(ContextLengthExceeded) as caught:
            first_kept([Turn(opening=1, answer=0)], protected, space)
        messages.add(caught.value.message)
    (message,) = messages
    assert all(text in message for text in ("system 90", "persona 30", "reply 5", "100"))


def test_a_small_context_lowers_reserve_and_step_to_a_quarter_each() -> None:
    assert window(limit=256, reserve=512, step=1024) == Window(limit=256, reserve=64, step=64)


@settings(max_examples=20)
@given(space=windows)
def test_no_history_at_all_fits(space: Window) -> None:
    assert first_kept([], PROTECTED, space) == 0
