"""Truncation of long conversations: the sticky sawtooth keeps its promises."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance._core import PromptTooLong, cut
from appliance.prompt.truncate import HISTORY_PRIORITY, Window, window
from tests.reference import prompting
from tests.reference.prompting import Part, Said, Turn

turn = st.builds(Turn, opening=st.integers(1, 60), answer=st.integers(0, 90))
windows = st.builds(
    Window,
    limit=st.integers(300, 600),
    reserve=st.integers(0, 80),
    step=st.integers(0, 100),
    draft=st.integers(0, 40),
)
PROTECTED = (("system", 40),)
FORMAT_TOKENS = 5
said = st.builds(
    Said,
    role=st.sampled_from(["user", "assistant", "user", "assistant", "system"]),
    tokens=st.integers(0, 70),
    goes_on=st.sampled_from([False, False, False, True]),
)
parts = st.lists(
    st.builds(
        Part,
        tokens=st.integers(0, 60),
        priority=st.integers(0, 4),
        block=st.sampled_from([None, None, "a", "b"]),
    ),
    max_size=7,
)


def kept_of(
    history: list[Said],
    space: Window,
    front: list[Part],
    after: list[Part] | None = None,
    history_priority: int = HISTORY_PRIORITY,
    names: list[str] | None = None,
) -> tuple[int, list[int], int]:
    """The cut in Rust."""
    after = after or []
    around = [*front, *after]
    named = names or [f"part {index}" for index in range(len(around))]
    columns = [(name, part.priority, part.block) for name, part in zip(named, around, strict=True)]
    return cut(
        [(said.role, said.tokens) for said in history],
        front=columns[: len(front)],
        after=columns[len(front) :],
        tokens=[part.tokens for part in around],
        format_tokens=FORMAT_TOKENS,
        holds=[index for index, said in enumerate(history) if said.goes_on and index > 0],
        history_priority=history_priority,
        window=space.sizes,
    )


def spoken(turns: list[Turn]) -> list[Said]:
    """Two messages a turn."""
    return [
        message
        for turn in turns
        for message in (
            Said(role="user", tokens=turn.opening),
            Said(role="assistant", tokens=turn.answer),
        )
    ]


def first_kept(turns: list[Turn], space: Window) -> int:
    """The first turn of the cut behind PROTECTED."""
    front = [Part(tokens=tokens) for _, tokens in PROTECTED]
    dropped, _, _ = kept_of(spoken(turns), space, front)
    assert dropped % 2 == 0
    return dropped // 2


def prompt_tokens(turns: list[Turn], kept: int, opening: int | None = None) -> int:
    """Tokens of the prompt for a reply to the last turn."""
    fixed = FORMAT_TOKENS + sum(tokens for _, tokens in PROTECTED)
    newest = turns[-1].opening if opening is None else opening
    return fixed + sum(t.opening + t.answer for t in turns[kept:-1]) + newest


@given(turns=st.lists(turn, min_size=1, max_size=60), space=windows)
def test_a_prompt_never_exceeds_the_room_and_keeps_the_newest_turn(
    turns: list[Turn], space: Window
) -> None:
    kept = first_kept(turns, space)
    assert 0 <= kept < len(turns)
    assert prompt_tokens(turns, kept) <= space.room


@given(turns=st.lists(turn, min_size=2, max_size=60), space=windows)
def test_the_first_kept_turn_only_moves_forward_and_only_when_the_window_is_full(
    turns: list[Turn], space: Window
) -> None:
    before = 0
    for length in range(1, len(turns) + 1):
        now = first_kept(turns[:length], space)
        asked = max(turns[length - 1].opening, space.draft)
        if now != before:
            assert now > before
            assert prompt_tokens(turns[:length], before, asked) > space.room
            # A quarter of a step is free then, and it went not one turn further than to a whole step.
            free = space.room - prompt_tokens(turns[:length], now, asked)
            assert free >= space.step // 4 or now == length - 1
            gone = sum(t.opening + t.answer for t in turns[:now])
            last = turns[now - 1].opening + turns[now - 1].answer
            assert (
                space.step == 0
                or gone - last < gone // space.step * space.step
                or (now == length - 1)
            )
        before = now


@settings(max_examples=300)
@given(
    history=st.lists(said, max_size=60),
    front=parts,
    after=parts,
    history_priority=st.integers(1, 4),
    space=windows,
)
def test_the_cut_is_that_of_the_slow_reference(
    history: list[Said],
    front: list[Part],
    after: list[Part],
    history_priority: int,
    space: Window,
) -> None:
    history = [replace(each, goes_on=each.goes_on and at > 0) for at, each in enumerate(history)]
    starts, turns = prompting.turns_of(history)
    around = [*front, *(replace(part, is_behind=True) for part in after)]
    expected = prompting.kept(turns, around, FORMAT_TOKENS, space, history_priority)
    if expected is None:
        with pytest.raises(PromptTooLong):
            kept_of(history, space, front, after, history_priority)
        return
    dropped = starts[expected.first] if starts else 0
    found = kept_of(history, space, front, after, history_priority)
    assert found == (dropped, expected.left_out, expected.window_tokens)


@settings(max_examples=200)
@given(
    history=st.lists(said, min_size=2, max_size=60),
    front=parts,
    history_priority=st.integers(1, 4),
    space=windows,
)
def test_along_a_path_nothing_comes_back_and_nothing_goes_between_two_cuts(
    history: list[Said], front: list[Part], history_priority: int, space: Window
) -> None:
    dropped, left_out, held = 0, list[int](), None
    before = 0
    for length in range(1, len(history) + 1):
        path = history[:length]
        if length < len(history) and path[-1].role != "user":
            continue
        try:
            now = kept_of(path, space, front, history_priority=history_priority)
        except PromptTooLong:
            return
        assert now[0] >= dropped
        assert set(now[1]) >= set(left_out)
        moved = (dropped, left_out) != (now[0], now[1])
        if held is not None and not moved:
            assert now[2] == held + sum(said.tokens for said in history[before:length])
        dropped, left_out, held = now
        before = length


@given(
    turns=st.lists(turn, min_size=4, max_size=60),
    branch=st.lists(turn, min_size=1, max_size=12),
    space=windows,
    at=st.integers(2, 59),
)
def test_branches_are_cut_at_the_same_places(
    turns: list[Turn], branch: list[Turn], space: Window, at: int
) -> None:
    space = replace(space, step=max(space.step, 30))
    ends = list(accumulate((t.opening + t.answer for t in turns), initial=0))
    # The first end of a turn at or behind each whole step.
    places = {0} | {
        next((index for index, end in enumerate(ends) if end >= place), len(ends))
        for place in range(space.step, ends[-1] + 1, space.step)
    }
    at = min(at, len(turns))
    for path in (turns, [*turns[:at], *branch]):
        for length in range(1, len(path) + 1):
            kept = first_kept(path[:length], space)
            assert kept in places or kept == length - 1 or kept > at


@given(
    turns=st.lists(turn, min_size=1, max_size=60),
    openings=st.lists(st.integers(1, 40), min_size=2, max_size=9),
    space=windows,
)
def test_another_wording_of_the_newest_message_does_not_move_the_cut(
    turns: list[Turn], openings: list[int], space: Window
) -> None:
    space = replace(space, draft=40)
    cuts = {
        first_kept([*turns[:-1], Turn(opening=opening, answer=0)], space) for opening in openings
    }
    assert len(cuts) == 1


@given(turns=st.lists(turn, min_size=3, max_size=60), space=windows, at=st.integers(1, 58))
def test_a_swipe_or_a_rewind_has_the_cut_that_its_place_had(
    turns: list[Turn], space: Window, at: int
) -> None:
    at = min(at, len(turns) - 1)
    before = first_kept(turns[:at], space)
    first_kept(turns, space)
    assert first_kept(turns[:at], space) == before
    swiped = [*turns[: at - 1], replace(turns[at - 1], answer=turns[at - 1].answer + 30)]
    assert first_kept(swiped, space) == before


def test_a_long_chat_moves_its_cut_once_a_step_and_stays_cached() -> None:
    space = Window(limit=2000, reserve=0, step=500)
    turns: list[Turn] = []
    cuts, cached, total, previous = [0], 0, 0, 0
    for _ in range(200):
        turns.append(Turn(opening=25, answer=25))
        kept = first_kept(turns, space)
        tokens = prompt_tokens(turns, kept)
        assert tokens <= 2000
        # The prompt before is a prefix of this one unless the cut moved; then only the system text is.
        cached += 40 if kept != cuts[-1] else min(previous, tokens)
        total += tokens
        previous = tokens + 25
        cuts.append(kept)
    overflow = 45 + 50 * 200 - 2000
    changes = sum(a != b for a, b in pairwise(cuts))
    assert 0 < changes <= math.ceil(overflow / 500)
    assert cached / total >= 0.85


def test_protected_parts_that_do_not_fit_are_named_with_their_sizes_every_time() -> None:
    space = Window(limit=100, reserve=0, step=25)
    front = [Part(tokens=90), Part(tokens=30), Part(tokens=7, priority=3)]
    messages = set()
    for _ in range(3):
        with pytest.raises(PromptTooLong) as caught:
            kept_of(
                [Said(role="user", tokens=1)], space, front, names=["system", "persona", "example"]
            )
        messages.add(str(caught.value))
    (message,) = messages
    for text in ("system 90", "persona 30", "chat format 5", "new message 1", "126 tokens", "100"):
        assert text in message
    assert "example" not in message


def test_parts_go_by_number_then_in_the_order_of_the_prompt_and_the_history_among_them() -> None:
    front = [Part(tokens=100, priority=priority) for priority in (0, 1, 5, 2, 1)]
    after = [Part(tokens=100, priority=2)]
    history = [*spoken([Turn(opening=50, answer=50)] * 4), Said(role="user", tokens=50)]
    everything = FORMAT_TOKENS + 600 + 450
    order = []
    for room in range(everything, 154, -100):
        dropped, left_out, _ = kept_of(
            history,
            Window(limit=room, reserve=0, step=0),
            front,
            after,
            history_priority=2,
        )
        order.append((dropped, left_out))
    assert order[:4] == [(0, []), (0, [2]), (0, [2, 3]), (2, [2, 3])]
    assert order[4:] == [
        (4, [2, 3]),
        (6, [2, 3]),
        (8, [2, 3]),
        (8, [2, 3, 5]),
        (8, [1, 2, 3, 5]),
        (8, [1, 2, 3, 4, 5]),
    ]


def test_a_block_goes_whole_and_one_with_a_protected_part_stays() -> None:
    front = [
        Part(tokens=10, priority=3, block="a"),
        Part(tokens=10, priority=3, block="a"),
        Part(tokens=10, priority=3, block="b"),
        Part(tokens=10, priority=0, block="b"),
    ]
    for room in range(60, 25, -1):
        _, left_out, _ = kept_of(
            [Said(role="user", tokens=1)], Window(limit=room, reserve=0, step=0), front
        )
        assert left_out == ([] if room >= 46 else [0, 1])


def test_what_belongs_together_is_never_parted_by_a_cut() -> None:
    turn = [
        Said(role="system", tokens=10),
        Said(role="user", tokens=10),
        Said(role="assistant", tokens=10),
        Said(role="user", tokens=10, goes_on=True),
        Said(role="assistant", tokens=10),
    ]
    space = Window(limit=200, reserve=0, step=30)
    for turns in range(1, 20):
        dropped, _, _ = kept_of([*turn * turns, *turn[:2]], space, [])
        assert dropped % len(turn) == 0
        assert (dropped > 0) == (turns > 3)


def test_a_small_context_lowers_reserve_step_and_draft() -> None:
    assert window(limit=256, reserve=512, step=1024) == Window(
        limit=256, reserve=64, step=64, draft=8
    )


@settings(max_examples=20)
@given(space=windows)
def test_no_history_at_all_fits(space: Window) -> None:
    front = [Part(tokens=tokens) for _, tokens in PROTECTED]
    assert kept_of([], space, front) == (0, [], 45)
