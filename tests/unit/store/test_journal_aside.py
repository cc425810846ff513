"""What is kept aside beside the journal is whole, and comes back."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from appliance.store.entries import Entry, TurnEntry, encode
from appliance.store.journal import Journal
from appliance.store.journal_aside import REFUSED_NAME, Refusal, keep_refused, read_aside
from appliance.store.journal_frame import HEADER_BYTES, frame, header
from appliance.store.records import FinishedTurn, NewMessage
from tests.unit.store.test_journal_file import disk_of

KEY = b"k" * 16
CHAT = UUID(int=7)


def entry(number: int, *, text: str = "said") -> Entry:
    """A turn that ended in that second."""
    said = NewMessage(
        message_id=UUID(int=100 + number), role="assistant", text=text, token_ids=b"\1\0\0\0"
    )
    turn = FinishedTurn(
        tenant="t",
        conversation_id=CHAT,
        turn_key=UUID(int=number),
        parent_id=None,
        user=None,
        assistant=said,
    )
    return TurnEntry(turn=turn, at=datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC))


def refusal(number: int, **fields: str) -> Refusal:
    """It, refused."""
    return Refusal(number=number, reason="no conversation", entry=entry(number, **fields))


def test_refused_entries_are_added_to_a_file_for_people_and_read_again(tmp_path: Path) -> None:
    keep_refused(tmp_path, [refusal(1), refusal(2, text="a \N{TEAPOT}\nline")])
    keep_refused(tmp_path, [refusal(3)])
    path = tmp_path / REFUSED_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().count(b"\n") == 3
    found = read_aside(path, key=KEY)
    assert found.entries == (entry(1), entry(2, text="a \N{TEAPOT}\nline"), entry(3))
    assert found.rest == b""


def test_a_line_that_was_cut_short_is_replaced_and_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / REFUSED_NAME
    keep_refused(tmp_path, [refusal(1)])
    one = path.stat().st_size
    for length in (70_000, 10):
        keep_refused(tmp_path, [refusal(2, text="x" * length)])
        os.truncate(path, path.stat().st_size - 3)
        keep_refused(tmp_path, [refusal(3)])
        assert read_aside(path, key=KEY).entries == (entry(1), entry(3))
        assert read_aside(path, key=KEY).rest == b""
        os.truncate(path, one)


def test_on_a_full_disk_no_part_of_a_line_is_written(tmp_path: Path) -> None:
    path = tmp_path / REFUSED_NAME
    keep_refused(tmp_path, [refusal(1)])
    before = path.read_bytes()
    with disk_of(len(before) + 20), pytest.raises(OSError, match="too large"):
        keep_refused(tmp_path, [refusal(2)])
    assert path.read_bytes() == before


def test_lines_that_are_no_entry_are_left_over(tmp_path: Path) -> None:
    path = tmp_path / REFUSED_NAME
    keep_refused(tmp_path, [refusal(1)])
    timeless = path.read_bytes().replace(b"2026-01-01T00:00:01Z", b"")
    others = [b"{}\n", timeless, b"\xff\n", b'{"number":1}\n', b"{" * 9000 + b"\n", b'{"number']
    path.write_bytes(path.read_bytes() + b"".join(others))
    found = read_aside(path, key=KEY)
    assert found.entries == (entry(1),)
    assert found.rest == b"".join(others)


def test_what_was_kept_of_a_journal_is_read_with_its_own_key_or_the_journals(
    tmp_path: Path,
) -> None:
    path = tmp_path / "damaged-0-abc"
    frames = b"".join(frame(KEY, n, encode(entry(n))) for n in (1, 2))
    broken = frame(KEY, 3, encode(entry(3)))[:-1] + b"?"
    other = b"z" * 16
    for content, key, rest in (
        (header(KEY) + frames + b"\0" * 99, other, b""),  # moved away whole
        (b"?" * HEADER_BYTES + frames, KEY, b"?" * HEADER_BYTES),
        (frames, KEY, b""),  # a stretch
        (broken + frames, KEY, broken),
        (header(other) + frames, other, frames),
    ):
        path.write_bytes(content)
        found = read_aside(path, key=key)
        assert found.rest == rest
        assert found.entries == (() if rest == frames else (entry(1), entry(2)))


async def test_entries_are_put_back_among_the_others_by_their_times_once_each(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path, bytes_max=1 << 20)
    try:
        for number in (2, 5):
            await journal.append(entry(number))
        assert await journal.put_back([entry(1), entry(5), entry(3), entry(3)]) == 2
        assert [one for _, one in journal.overlay.pending()] == [entry(n) for n in (1, 2, 3, 5)]
        await journal.append(entry(6))
    finally:
        await journal.close()
    journal = Journal(tmp_path, bytes_max=1 << 20)
    try:
        held = list(journal.overlay.pending())
        assert [one for _, one in held] == [entry(n) for n in (1, 2, 3, 5, 6)]
        await journal.settle([number for number, _ in held])
        assert journal.used_bytes == HEADER_BYTES
    finally:
        await journal.close()
