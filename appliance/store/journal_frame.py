"""The journal's file as bytes: a header, then frames, each with its length, number and checksum.

A frame is magic (4 bytes), the payload's length (u32), the frame's number (u64), both
little-endian, a keyed BLAKE2b digest (16 bytes) over length, number and payload, then the payload.
The key is drawn with the file and stands in its header: a text that holds the bytes of a frame is
never taken for one. After the last frame the file may go on with zeros, space that was reserved.
Pure; never opens a file.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, replace

from appliance.errors import JournalDamaged

MAGIC = b"\xf5Jf\x01"
"""Begins a frame; no UTF-8 text holds its first byte."""

TITLE = b"appliance journal 1\n"
KEY_BYTES = 16
HEADER_BYTES = len(TITLE) + KEY_BYTES
PAYLOAD_BYTES_MAX = 64 << 20

_HEAD = struct.Struct("<4sIQ16s")
_DIGESTED = struct.Struct("<IQ")
OVERHEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that was found whole, at [start, end) of the file."""

    number: int
    start: int
    end: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a file holds. `end` is where its last frame ends and the next is to be written.

    `damaged` are the stretches [start, end) that are no frame, between frames or behind the last; the
    header too, where the frames were found all the same.
    `torn_bytes` follow the last frame and look like the begin of another: most likely what was being
    written when the process or the machine died, and nobody was told of.
    """

    key: bytes
    frames: tuple[Frame, ...]
    damaged: tuple[tuple[int, int], ...]
    end: int
    torn_bytes: int


def header(key: bytes) -> bytes:
    """The begin of a file whose frames have this key."""
    assert len(key) == KEY_BYTES
    return TITLE + key


def frame(key: bytes, number: int, payload: bytes) -> bytes:
    """A frame, as it is written."""
    assert len(payload) <= PAYLOAD_BYTES_MAX
    return _HEAD.pack(MAGIC, len(payload), number, _digest(key, number, payload)) + payload


def scan(data: bytes, *, spare_key: bytes | None = None) -> Scan:
    """Read a whole file; `spare_key` is the key as it is kept elsewhere, for a header that is damaged.

    Raises JournalDamaged when it neither begins as a journal nor has a frame of one.
    """
    if len(data) < HEADER_BYTES:
        raise JournalDamaged("the file does not begin with a journal's header")
    key = data[len(TITLE) : HEADER_BYTES]
    found = scan_part(data, key, HEADER_BYTES)
    if spare_key is not None and spare_key != key and (found.damaged or found.torn_bytes):
        spare = scan_part(data, spare_key, HEADER_BYTES)
        found = spare if len(spare.frames) > len(found.frames) else found
    if data.startswith(TITLE) and found.key == key:
        return found
    if not found.frames:
        raise JournalDamaged("the file does not begin with a journal's header")
    return replace(found, damaged=((0, HEADER_BYTES), *found.damaged))


def scan_part(data: bytes, key: bytes, place: int = 0) -> Scan:
    """What there is of frames with this key, from this place on."""
    frames: list[Frame] = []
    damaged: list[tuple[int, int]] = []
    number = 0
    while True:
        found = _frame_at(data, place, key, number)
        if found is None:
            found = _next_frame(data, place + 1, key, number)
            if found is None:
                break
            damaged.append((place, found.start))
        frames.append(found)
        place, number = found.end, found.number
    torn = len(data[place:].rstrip(b"\0"))
    if torn and not _is_begun(data[place : place + torn]):
        damaged.append((place, place + torn))
        torn = 0
    return Scan(key=key, frames=tuple(frames), damaged=tuple(damaged), end=place, torn_bytes=torn)


def _frame_at(data: bytes, place: int, key: bytes, after: int) -> Frame | None:
    """The frame that begins here, with a number above `after`; None when there is none."""
    if len(data) - place < _HEAD.size:
        return None
    magic, length, number, digest = _HEAD.unpack_from(data, place)
    end = place + _HEAD.size + length
    if magic != MAGIC or number <= after or length > PAYLOAD_BYTES_MAX or end > len(data):
        return None
    payload = data[place + _HEAD.size : end]
    if not hmac.compare_digest(digest, _digest(key, number, payload)):
        return None
    return Frame(number=number, start=place, end=end, payload=payload)


def _is_begun(tail: bytes) -> bool:
    """Whether this may be a frame whose end was not written: of a whole one something is damaged."""
    if len(tail) < _HEAD.size:
        return MAGIC.startswith(tail[: len(MAGIC)])
    magic, length, _, _ = _HEAD.unpack_from(tail)
    return bool(
        magic == MAGIC and len(tail) < _HEAD.size + length <= _HEAD.size + PAYLOAD_BYTES_MAX
    )


def _next_frame(data: bytes, place: int, key: bytes, after: int) -> Frame | None:
    """The first whole frame at or behind this place."""
    while (place := data.find(MAGIC, place)) >= 0:
        found = _frame_at(data, place, key, after)
        if found is not None:
            return found
        place += 1
    return None


def _digest(key: bytes, number: int, payload: bytes) -> bytes:
    digest = hashlib.blake2b(_DIGESTED.pack(len(payload), number), digest_size=16, key=key)
    digest.update(payload)
    return digest.digest()
