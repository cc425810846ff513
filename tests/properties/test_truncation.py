"""Truncation of long conversations: the sticky sawtooth keeps its promises."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance._core import PromptTooLong, cut
from appliance.prompt.truncate import Window, window
from tests.reference import prompting
from tests.reference.prompting import Turn

turn = st.builds(Turn, opening=st.integers(1, 60), answer=st.integers(0, 90))
windows = st.builds(
    Window, limit=st.integers(300, 600), reserve=st.integers(0, 80), step=st.integers(0, 100)
)
PROTECTED = (("system", 40), ("reply header", 5))
message = st.tuples(st.booleans(), st.integers(0, 70))


def first_kept(turns: list[Turn], protected: tuple[tuple[str, int], ...], space: Window) -> int:
    """The first turn of the cut: two messages a turn."""
    sizes = [size for turn in turns for size in ((True, turn.opening), (False, turn.answer))]
    dropped, _ = cut_of(sizes, space, protected)
    assert dropped % 2 == 0
    return dropped // 2


def cut_of(
    sizes: list[tuple[bool, int]],
    space: Window,
    protected: tuple[tuple[str, int], ...] = PROTECTED,
) -> tuple[int, int]:
    return cut(
        sizes, protected=protected, limit=space.limit, reserve=space.reserve, step=space.step
    )


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


@given(
    sizes=st.lists(message, max_size=90),
    fixed=st.integers(0, 400),
    space=windows,
)
def test_the_cut_is_that_of_the_slow_reference(
    sizes: list[tuple[bool, int]], fixed: int, space: Window
) -> None:
    starts, turns = prompting.turns_of(sizes)
    kept = prompting.first_kept(turns, fixed, space)
    if kept is None:
        with pytest.raises(PromptTooLong):
            cut_of(sizes, space, (("all", fixed),))
        return
    dropped = starts[kept] if starts else 0
    window_tokens = fixed + sum(tokens for _, tokens in sizes[dropped:])
    assert cut_of(sizes, space, (("all", fixed),)) == (dropped, window_tokens)


@given(sizes=st.lists(message, min_size=1, max_size=90), space=windows, known=st.integers(1, 90))
def test_a_path_from_a_known_cut_on_gives_the_same_cut_as_the_whole_path(
    sizes: list[tuple[bool, int]], space: Window, known: int
) -> None:
    before, _ = cut_of(sizes[:known], space)
    tail, window_tokens = cut_of(sizes[before:], space)
    assert (before + tail, window_tokens) == cut_of(sizes, space)


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
        with pytest.raises(PromptTooLong) as caught:
            first_kept([Turn(opening=1, answer=0)], protected, space)
        messages.add(str(caught.value))
    (message,) = messages
    assert all(text in message for text in ("system 90", "persona 30", "reply 5", "100"))


def test_a_small_context_lowers_reserve_and_step_to_a_quarter_each() -> None:
    assert window(limit=256, reserve=512, step=1024) == Window(limit=256, reserve=64, step=64)


@settings(max_examples=20)
@given(space=windows)
def test_no_history_at_all_fits(space: Window) -> None:
    assert cut_of([], space) == (0, 45)
