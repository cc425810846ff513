"""The journal's bytes: what is whole is found, and nothing else is taken for a frame."""

from __future__ import annotations

import pytest

from appliance.errors import JournalDamaged
from appliance.store.journal_frame import HEADER_BYTES, OVERHEAD_BYTES, frame, header, scan

KEY = b"k" * 16
PAYLOADS = (b"one", b"", b"three" * 9, "vier \N{TEAPOT}".encode())


def journal(*payloads: bytes, first: int = 1) -> bytes:
    """A file of these payloads."""
    return header(KEY) + b"".join(frame(KEY, n, p) for n, p in enumerate(payloads, first))


def ends(*payloads: bytes) -> list[int]:
    """Where each frame ends."""
    places, place = [], HEADER_BYTES
    for payload in payloads:
        place += OVERHEAD_BYTES + len(payload)
        places.append(place)
    return places


def test_a_file_cut_at_any_byte_gives_exactly_the_frames_that_are_whole() -> None:
    whole = journal(*PAYLOADS)
    places = ends(*PAYLOADS)
    for cut in range(HEADER_BYTES, len(whole) + 1):
        for after in (b"", b"\0" * 64):
            found = scan(whole[:cut] + after)
            kept = sum(place <= cut for place in places)
            assert [one.payload for one in found.frames] == list(PAYLOADS[:kept])
            assert not found.damaged
            assert found.end == (places[kept - 1] if kept else HEADER_BYTES)
            assert found.torn_bytes <= cut - found.end


def test_a_file_cut_in_its_header_is_no_journal() -> None:
    for cut in range(HEADER_BYTES):
        with pytest.raises(JournalDamaged):
            scan(journal(b"x")[:cut])


def test_one_wrong_byte_anywhere_costs_its_frame_alone_and_is_told() -> None:
    whole = journal(*PAYLOADS)
    places = ends(*PAYLOADS)
    for at in range(HEADER_BYTES, len(whole)):
        broken = whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]
        found = scan(broken)
        hit = sum(place <= at for place in places)
        assert [one.number for one in found.frames] == [n + 1 for n in range(4) if n != hit]
        if hit < 3:
            assert found.damaged == ((places[hit - 1] if hit else HEADER_BYTES, places[hit]),)
        else:
            last, end = places[2], len(whole)
            # A length that has grown looks like a frame that was not written to its end.
            has_grown = last + 4 <= at < last + 8 and not whole[at] & 0x40
            grown_most = 0x40 << 8 * (at - last - 4) if has_grown else 0
            if has_grown and grown_most < 64 << 20:
                assert (found.damaged, found.torn_bytes) == ((), end - last)
            else:
                assert (found.damaged, found.torn_bytes) == (((last, end),), 0)


def test_a_text_that_holds_a_frame_is_not_taken_for_one() -> None:
    # Not even when what stood before it is damaged, and the reader looks for the next frame.
    planted = frame(b"z" * 16, 7, b"forged")
    whole = bytearray(journal(b"first", planted, b"last"))
    whole[ends(b"first")[0] + 5] ^= 1
    found = scan(bytes(whole))
    assert [one.payload for one in found.frames] == [b"first", b"last"]


def test_numbers_only_grow_so_that_an_older_frame_behind_is_not_read() -> None:
    found = scan(journal(b"new", first=9) + frame(KEY, 3, b"left over"))
    assert [one.payload for one in found.frames] == [b"new"]
    assert found.damaged
