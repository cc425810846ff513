"""The file of a recorded trace: its records, how they lie in it, and the reader. Never: writes one.

A file holds sections, one for each engine that wrote to it: `MAGIC`, a `Section`, then a `Request` for
each request that had pages. A record is its length and the CRC-32 of its body (both big-endian u32),
then the body, a msgpack array. Where one is damaged, reading goes on at the next section's `MAGIC`.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance import tokens
from appliance.errors import InvalidTrace
from appliance.wire.frames import FRAME_BYTES_MAX, FinishReason

FORMAT = 1
MAGIC = b"appliance-trace\n"
WORD_BYTES = 4
RECORD_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""A request came in one frame; its reply is no longer than the context."""


class Section(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An engine's start: its sizes. `started_at` is unix time; `disk_slots` those asked for."""

    format: int
    started_at: float
    page_size: int
    pages: int
    host_slots: int
    disk_slots: int
    bytes_per_token: int


class Deed(enum.IntEnum):
    """What a request did to the index."""

    ADMIT = 0
    COMMIT = 1
    RELEASE = 2


class Mark(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One deed. `order` counts the deeds of all requests; the counts are of positions from 0 on.

    `tokens`: admitted, or committed. `reserved`: the positions an admission took room for.
    """

    order: int
    deed: Deed
    tokens: int = 0
    reserved: int = 0


class Request(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request. Token ids and names are hidden: equal ones of a section are equal, no more.

    `after`: (node, tokens) it went on from; then `token_ids` are what follows. `reply`: what was
    generated, `new_tokens` of it, and the closing tokens after a whole reply. `hit_tokens` were found at
    its first admission. `node` is where it left off. `arrived_s` counts from the section's start.
    """

    ordinal: int
    arrived_s: float
    after: tuple[int, int] | None
    token_ids: tokens.TokenIds
    stretches: list[tuple[bytes, int]]
    conversation: bytes
    reply: tokens.TokenIds
    new_tokens: int
    reason: FinishReason
    hit_tokens: int
    node: int
    marks: list[Mark]

    @property
    def first(self) -> int:
        """The position of the first of `token_ids`."""
        return 0 if self.after is None else self.after[1]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.first + tokens.count(self.token_ids)

    @property
    def length(self) -> int:
        """Positions of prompt, reply and closing tokens."""
        return self.prompt_tokens + tokens.count(self.reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The readable part of one section."""

    section: Section
    requests: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContents:
    """The readable part of a file, and a sentence for each part that is not."""

    recorded: list[Recorded]
    warnings: list[str]


class _Damaged(Exception):
    """What stands at a place is no record."""


_encoder = msgspec.msgpack.Encoder()
_sections = msgspec.msgpack.Decoder(Section)
_requests = msgspec.msgpack.Decoder(Request)
T = TypeVar("T")


def encode_section(section: Section) -> bytes:
    """The start of a section."""
    return MAGIC + _framed(section)


def encode_request(request: Request) -> bytes:
    """One record."""
    return _framed(request)


def read_trace(path: Path) -> TraceContents:
    """All that can be read of a file, which is held in memory.

    Raises InvalidTrace when that is nothing, and OSError when the file cannot be read at all.
    """
    data = path.read_bytes()
    recorded: list[Recorded] = []
    warnings: list[str] = []
    at = 0 if data.startswith(MAGIC) else -1
    if at < 0:
        raise InvalidTrace(f"{path}: not a trace: it does not begin as one")
    while at >= 0:
        requests: list[Request] = []
        try:
            section, end = _record(data, at + len(MAGIC), _sections)
            if section.format != FORMAT:
                raise InvalidTrace(f"{path}: format {section.format}, this version reads {FORMAT}")
            _check_section(section)
            recorded.append(Recorded(section=section, requests=requests))
            while end < len(data) and not data.startswith(MAGIC, end):
                at = end
                request, end = _record(data, at, _requests)
                _check_request(request)
                requests.append(request)
            at = end if end < len(data) else -1
        except _Damaged as damage:
            following = data.find(MAGIC, at + 1)
            left = (len(data) if following < 0 else following) - at
            warnings.append(f"{path}: byte {at}: {damage}; {left} bytes are left out")
            at = following
    if not recorded:
        raise InvalidTrace(f"{path}: nothing in it can be read: {warnings[0]}")
    return TraceContents(recorded=recorded, warnings=warnings)


def _framed(record: msgspec.Struct) -> bytes:
    body = _encoder.encode(record)
    return b"".join((len(body).to_bytes(WORD_BYTES), zlib.crc32(body).to_bytes(WORD_BYTES), body))


def _record(data: bytes, at: int, decoder: msgspec.msgpack.Decoder[T]) -> tuple[T, int]:
    """The record at a place, and where the next one begins."""
    start = at + 2 * WORD_BYTES
    length = int.from_bytes(data[at : at + WORD_BYTES])
    if start > len(data) or length > len(data) - start:
        raise _Damaged("the last record is not whole, or its length is damaged")
    if length > RECORD_BYTES_MAX:
        raise _Damaged(f"a record of {length} bytes is over the limit of {RECORD_BYTES_MAX}")
    body = data[start : start + length]
    if zlib.crc32(body) != int.from_bytes(data[at + WORD_BYTES : start]):
        raise _Damaged("a record is damaged")
    try:
        return decoder.decode(body), start + length
    except msgspec.MsgspecError as error:
        raise _Damaged(f"not a record: {error}") from error


def _check_section(section: Section) -> None:
    positive = (section.page_size, section.pages, section.bytes_per_token)
    if min(positive) < 1 or min(section.host_slots, section.disk_slots) < 0:
        raise _Damaged("the sizes of a section are out of range")


def _check_request(request: Request) -> None:
    """What a replay relies on: the stretches cover the prompt, and the deeds alternate."""
    if any(len(ids) % tokens.BYTES_PER_TOKEN for ids in (request.token_ids, request.reply)):
        raise _Damaged("a record's token ids are not whole")
    covered = [count for _, count in request.stretches]
    if request.first < 0 or sum(covered) != request.prompt_tokens or min(covered, default=-1) < 0:
        raise _Damaged("a record's stretches do not cover its prompt")
    admitted = 0
    holds = False
    for mark in request.marks:
        if holds is (mark.deed is Deed.ADMIT):
            raise _Damaged("a record's deeds are in no order that an engine has")
        if mark.deed is Deed.ADMIT:
            admitted = mark.tokens
            lowest = request.prompt_tokens
        else:
            lowest = 0
        holds = mark.deed is not Deed.RELEASE
        if not lowest <= mark.tokens <= request.length or mark.order < 0:
            raise _Damaged("a record's counts are out of range")
    if holds or admitted == 0:
        raise _Damaged("a record never had pages, or never gave them back")
