"""Cards in PNG and APNG files: text chunks taken out and put in. Never unpacks pixels or parses JSON.

PNG specification (third edition), 5: a chunk is its length, its type, its data and their CRC-32.
"""

from __future__ import annotations

import base64
import binascii
import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.errors import InvalidCard
from appliance.prompt.cards.image import PNG_SIGNATURE, Image, read_image
from appliance.prompt.cards.json_document import JSON_BYTES_MAX

KEYWORDS = ("ccv3", "chara")
"""The chunks a card lies in, the preferred one first (V3: an application should use `ccv3`)."""

ASSET_KEYWORD = "chara-ext-asset_:"
_CHUNKS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PngCard:
    """What a PNG file holds: the card's JSON, the chunk it lay in, and the image without cards."""

    keyword: str
    json: bytes
    image: Image
    warnings: tuple[str, ...]


def read_png(data: bytes) -> PngCard:
    """Take the card out of a PNG file; raises InvalidCard naming the chunk and what is wrong with it."""
    image = read_image(data, "image")
    kept = [PNG_SIGNATURE]
    cards: dict[str, bytes] = {}
    end = 0
    for kind, body, whole in _chunks(data):
        end += len(whole)
        keyword = _keyword(kind, body)
        if keyword.lower() in KEYWORDS:
            text = body[len(keyword) + 1 :]
            if cards.setdefault(keyword.lower(), text) != text:
                raise InvalidCard(
                    f"chunk {keyword}: the image holds two different cards under this name",
                    param=keyword,
                )
            continue
        kept.append(whole)
    keyword = next((keyword for keyword in KEYWORDS if keyword in cards), "")
    if not keyword:
        raise InvalidCard(
            "image: it holds no character card (no tEXt chunk `ccv3` or `chara`); a copy that was "
            "converted or made smaller has lost it",
            param="image",
        )
    follows = len(PNG_SIGNATURE) + end < len(data)
    return PngCard(
        keyword=keyword,
        json=_decoded(cards[keyword], keyword),
        image=Image(kind="png", width=image.width, height=image.height, data=b"".join(kept)),
        warnings=("image: what followed its end was left out",) if follows else (),
    )


def write_png(image: Image, keyword: str, json: bytes) -> bytes:
    """The image with a card in front of its pixels; `image` must hold no card of this keyword."""
    assert image.kind == "png"
    after_header = len(PNG_SIGNATURE) + 25  # IHDR: 13 bytes of data in 12 of frame
    body = keyword.encode() + b"\0" + base64.b64encode(json)
    return image.data[:after_header] + _chunk(b"tEXt", body) + image.data[after_header:]


@functools.cache
def plain_png(width: int, height: int, rgb: tuple[int, int, int]) -> Image:
    """An image of one colour, for a card that has none of its own."""
    row = b"\0" + bytes(rgb) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"".join(
        (
            PNG_SIGNATURE,
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(row * height, 9)),
            _chunk(b"IEND", b""),
        )
    )
    return Image(kind="png", width=width, height=height, data=data)


def has_assets(image: Image) -> bool:
    """Whether a PNG image carries files of its card in chunks."""
    return image.kind == "png" and any(
        _keyword(kind, body).startswith(ASSET_KEYWORD) for kind, body, _ in _chunks(image.data)
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(type, data, the chunk as it stands) up to IEND; raises InvalidCard for a damaged one."""
    at = len(PNG_SIGNATURE)
    for _ in range(_CHUNKS_MAX):
        if at + 12 > len(data):
            raise InvalidCard("image: the file ends before its last chunk", param="image")
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        name = kind.decode("latin-1")
        if at + 12 + length > len(data):
            raise InvalidCard(f"chunk {name!r}: the file ends in the middle of it", param="image")
        body = data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(body, zlib.crc32(kind)) != crc:
            raise InvalidCard(
                f"chunk {name!r}: its CRC is wrong, the file is damaged", param="image"
            )
        yield kind, body, data[at : at + 12 + length]
        if kind == b"IEND":
            return
        at += 12 + length
    raise InvalidCard(f"image: more than {_CHUNKS_MAX} chunks", param="image")


def _keyword(kind: bytes, body: bytes) -> str:
    """The keyword of a text chunk, '' for other chunks."""
    if kind != b"tEXt" or b"\0" not in body[:80]:
        return ""
    return body[: body.index(b"\0")].decode("latin-1")


def _decoded(text: bytes, keyword: str) -> bytes:
    if len(text) > JSON_BYTES_MAX * 3 // 2:
        raise InvalidCard(
            f"chunk {keyword}: {len(text)} characters of base64, more than {JSON_BYTES_MAX} bytes",
            param=keyword,
        )
    packed = b"".join(text.split())
    try:
        # Some writers leave the padding out.
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise InvalidCard(f"chunk {keyword}: not base64", param=keyword) from error


def _chunk(kind: bytes, body: bytes) -> bytes:
    crc = zlib.crc32(body, zlib.crc32(kind))
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
