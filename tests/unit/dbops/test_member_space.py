"""The member space in use, from the names of files and the newest checkpoint's offset."""

from __future__ import annotations

import pytest

from appliance.dbops.limits import (
    MEMBER_SEGMENTS,
    MEMBERS_MAX,
    MEMBERS_PER_SEGMENT,
    Stage,
    stage_of_members,
)
from appliance.dbops.snapshot.member_space import member_space


def names(*numbers: int) -> list[str]:
    return [f"{number:04X}" for number in numbers]


@pytest.mark.parametrize(
    ("segments", "newest", "count"),
    [
        ([0], 0, 1),
        ([], 0, 1),
        ([3, 4, 5], 5, 3),
        # The checkpoint is older than the newest files.
        ([3, 4, 5, 6], 4, 4),
        # Its file is still in the server's buffers.
        ([3, 4, 5], 6, 4),
        # Past the end of the ring.
        ([82_039, 82_040, 0, 1], 1, 4),
        ([82_039, 82_040, 0, 1], 82_040, 4),
        # Files are missing, as where the counter was moved by hand: the stretch is in use all the same.
        ([0, 82_037], 82_037, 82_038),
        ([*range(100), 82_037], 82_037, 82_038),
        (list(range(82_040)), 82_039, 82_040),
    ],
)
def test_the_space_in_use_reaches_from_the_oldest_file_to_the_newest(
    segments: list[int], newest: int, count: int
) -> None:
    offset = newest * MEMBERS_PER_SEGMENT + 17
    found = member_space(["not a number", *names(*segments)], offset)
    assert found.used == min(2**32, count * MEMBERS_PER_SEGMENT)
    assert found.left == max(0, MEMBERS_MAX - found.used)


def test_the_marks_are_those_of_the_server() -> None:
    # multixact.c: 1,636 members a page of 8 KB, 32 pages a file.
    assert MEMBERS_PER_SEGMENT == 1636 * 32
    assert f"{MEMBER_SEGMENTS - 1:X}" == "14078"


@pytest.mark.parametrize(
    ("segments", "stage"),
    [
        (1, Stage.OK),
        (49_000, Stage.OK),
        (49_230, Stage.LAGGING),
        (61_531, Stage.FAILSAFE),
        (82_021, Stage.WARN),
        # What is in use is known to two files: the last two count as the stop.
        (82_038, Stage.STOPPED),
        (82_040, Stage.STOPPED),
    ],
)
def test_a_stage_of_the_member_space_begins_at_its_mark(segments: int, stage: Stage) -> None:
    assert stage_of_members(segments * MEMBERS_PER_SEGMENT) == stage
