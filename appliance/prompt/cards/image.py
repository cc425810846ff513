"""The image of a card: which kind it is and how large, by its first bytes. Never decodes a pixel."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from appliance.errors import InvalidCard

SIDE_MAX = 8192
PIXELS_MAX = 32 * 1024 * 1024
"""What a browser has to unpack: 128 MiB at four bytes each."""

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SEGMENTS_MAX = 4096
"""Looked at before the frame: a profile of 16 MiB takes 256."""

_NO_FILL_BYTE = re.compile(rb"[^\xff]")
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as it came. `kind` is `png`, `jpeg` or `webp`; sizes are in pixels."""

    kind: str
    width: int
    height: int
    data: bytes

    @property
    def content_type(self) -> str:
        """Its type in HTTP."""
        return f"image/{self.kind}"


def read_image(data: bytes, where: str) -> Image:
    """Raises InvalidCard naming `where`: no PNG, JPEG or WebP, damaged at its front, or too large."""
    for kind, signature, size_of in _KINDS:
        if signature(data):
            try:
                width, height = size_of(data)
            except (struct.error, IndexError, ValueError) as error:
                raise InvalidCard(f"{where}: a damaged {kind} image", param=where) from error
            _check_size(width, height, where)
            return Image(kind=kind, width=width, height=height, data=data)
    raise InvalidCard(f"{where}: not a PNG, JPEG or WebP image", param=where)


def _check_size(width: int, height: int, where: str) -> None:
    if not (1 <= width <= SIDE_MAX and 1 <= height <= SIDE_MAX) or width * height > PIXELS_MAX:
        raise InvalidCard(
            f"{where}: the image has {width} x {height} pixels, the limits are {SIDE_MAX} a side "
            f"and {PIXELS_MAX} in all",
            param=where,
        )


def _png_size(data: bytes) -> tuple[int, int]:
    """PNG specification (third edition) 11.2.1: IHDR is the first chunk, of 13 bytes, the size its first
    fields."""
    if data[8:16] != b"\0\0\0\x0dIHDR":
        raise ValueError("no IHDR")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """ITU-T T.81, B.2.2: the frame header has the lines, then the samples a line."""
    at = 2
    for _ in range(_JPEG_SEGMENTS_MAX):
        if data[at] != 0xFF:
            raise ValueError("no marker")
        found = _NO_FILL_BYTE.search(data, at)
        if found is None:
            raise ValueError("fill bytes to the end")
        at = found.start() - 1
        marker = data[at + 1]
        if marker in _JPEG_START_OF_FRAME:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker in _JPEG_ALONE:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if length < 2:
            raise ValueError("a segment without its length")
        at += 2 + length
    raise ValueError("no frame among the first segments")


def _webp_size(data: bytes) -> tuple[int, int]:
    """RFC 9649, 2.5 to 2.7: lossy, lossless or extended."""
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise ValueError("no key frame")
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(data) >= 30:
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    raise ValueError("no known chunk")


_KINDS: tuple[
    tuple[str, Callable[[bytes], bool], Callable[[bytes], tuple[int, int]]],
    ...,
] = (
    ("png", lambda data: data.startswith(PNG_SIGNATURE), _png_size),
    ("jpeg", lambda data: data.startswith(b"\xff\xd8\xff"), _jpeg_size),
    ("webp", lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", _webp_size),
)
