"""Character cards made in code: all versions, all kinds of file, and the odd fields of real ones."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    b"\xff\xc0\x00\x0b\x08\x00\x30\x00\x20\x01\x01\x11\x00\xff\xd9"
)
"""The front of a JPEG of 32 x 48 pixels: enough to be recognised, nothing to be shown."""

WEBP = b"RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x10\x00\x00\x00\x1f\x00\x00\x2f\x00\x00"
PLAIN_V1 = {
    "name": "Mira",
    "description": "{{char}} keeps the lighthouse.",
    "personality": "patient",
    "scenario": "A storm is coming.",
    "first_mes": "Come in, {{user}}.",
    "mes_example": "<START>\n{{user}}: Hello?\n{{char}}: Mind the steps.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A card's file, the document in it, and what somebody who reads it is warned of."""

    name: str
    data: bytes
    document: Mapping[str, Any]
    kind: str
    warned: str = ""


def chunk(kind: bytes, body: bytes) -> bytes:
    crc = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)


def pixels(width: int = 32, height: int = 48, *, shade: int = 120) -> list[bytes]:
    """The chunks of a small image: IHDR, IDAT, IEND."""
    row = b"\0" + bytes((shade, 140, 160)) * width
    return [
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        chunk(b"IDAT", zlib.compress(row * height)),
        chunk(b"IEND", b""),
    ]


def png_file(chunks: Sequence[bytes]) -> bytes:
    return SIGNATURE + b"".join(chunks)


def text_chunk(keyword: str, document: object) -> bytes:
    return chunk(b"tEXt", keyword.encode() + b"\0" + base64.b64encode(encoded(document)))


def png(keyword: str, document: object, *others: bytes, shade: int = 120) -> bytes:
    """A PNG card: its text chunk stands behind the header, `others` before the end."""
    header, data, end = pixels(shade=shade)
    return png_file([header, text_chunk(keyword, document), data, *others, end])


def charx(document: object, files: Mapping[str, bytes] | None = None) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("card.json", encoded(document))
        for path, data in (files or {}).items():
            archive.writestr(path, data)
    return target.getvalue()


def encoded(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def v2(**data: Any) -> dict[str, Any]:
    """A V2 document; `data` replaces and adds fields."""
    fields = {
        **PLAIN_V1,
        "creator_notes": "DO-NOT-LEAK",
        "system_prompt": "",
        "post_history_instructions": "",
        "alternate_greetings": [],
        "tags": ["calm"],
        "creator": "anon",
        "character_version": "1",
        "extensions": {},
        **data,
    }
    return {"spec": "chara_card_v2", "spec_version": "2.0", "data": fields}


def v3(**data: Any) -> dict[str, Any]:
    """A V3 document; `data` replaces and adds fields."""
    document = v2(**{"group_only_greetings": [], **data})
    return {**document, "spec": "chara_card_v3", "spec_version": "3.0"}


BOOK: dict[str, Any] = {
    "name": "The coast",
    "scan_depth": 4,
    "token_budget": 200,
    "extensions": {"x": {"kept": [1, None]}},
    "entries": [
        {
            "keys": ["owl"],
            "content": "An owl lives in the tower.",
            "extensions": {"position": 1},
            "enabled": True,
            "insertion_order": 10,
            "priority": 3,
        }
    ],
}
MAIN_ICON = {
    "type": "icon",
    "uri": "embeded://assets/icon/images/a.png",
    "name": "main",
    "ext": "png",
}


def thirty_cards() -> tuple[Made, ...]:
    """Thirty cards, each odd in its own way; every one of them is to be read."""
    return (*_v1_cards(), *_v2_cards(), *_v2_odd_cards(), *_v3_cards(), *_v3_files())


def _json(name: str, document: dict[str, Any], warned: str = "") -> Made:
    return Made(name=name, data=encoded(document), document=document, kind="json", warned=warned)


def _png(
    name: str, keyword: str, document: dict[str, Any], *others: bytes, warned: str = ""
) -> Made:
    data = png(keyword, document, *others)
    return Made(name=name, data=data, document=document, kind="png", warned=warned)


def _charx(
    name: str, document: dict[str, Any], files: Mapping[str, bytes], warned: str = ""
) -> Made:
    data = charx(document, files)
    return Made(name=name, data=data, document=document, kind="charx", warned=warned)


def _v1_cards() -> tuple[Made, ...]:
    return (
        _json("v1", dict(PLAIN_V1)),
        _json("v1 with fields of its own", {**PLAIN_V1, "talkativeness": "0.5", "fav": False}),
        _json("v1 without most fields", {"name": "Bo", "first_mes": "Hm."}),
        _png("v1 in a png", "chara", dict(PLAIN_V1)),
        _png("v1 under an old spelling of the chunk", "Chara", dict(PLAIN_V1)),
    )


def _v2_cards() -> tuple[Made, ...]:
    return (
        _json("v2", v2()),
        _json("v2 with swipes", v2(alternate_greetings=["Hey {{user}}", "", "You again?"])),
        _json("v2 with extensions", v2(extensions={"x/y": {"keep": [1, None, 1.5]}, "": {"": []}})),
        _json("v2 with a book", v2(character_book=BOOK)),
        _json("v2 with its own system prompt", v2(system_prompt="{{original}} Be brief.")),
        _json("v2 with every macro", v2(description=EVERY_MACRO)),
        _json(
            "v2 in every script",
            v2(name='Míra "the Öwl": v2 🦉', description="名前\n\t\u2028"),
        ),
        _png("v2 in a png", "chara", v2()),
        Made(name="v2 in an apng", data=_apng(v2()), document=v2(), kind="png"),
    )


EVERY_MACRO = (
    "{{char}} <BOT> <char> {{USER}} <user> {{random:a,b\\,c}} {{pick::x::y}} {{roll:d6}} {{roll:20}} "
    "{{// nobody reads this}}{{comment: nor this}}{{hidden_key:owl}}{{reverse:abc}} {{unknown}} {% if %}"
)


def _apng(document: dict[str, Any]) -> bytes:
    """Two frames, with a text of the painter's program behind the card."""
    header, data, end = pixels()
    frame = struct.pack(">IIIIHHBB", 32, 48, 0, 0, 1, 10, 0, 0)
    return png_file(
        [
            header,
            chunk(b"acTL", struct.pack(">II", 2, 0)),
            text_chunk("chara", document),
            chunk(b"tEXt", b"Software\0a painter"),
            chunk(b"fcTL", struct.pack(">I", 0) + frame),
            data,
            chunk(b"fcTL", struct.pack(">I", 1) + frame),
            chunk(b"fdAT", struct.pack(">I", 2) + data[8:-4]),
            end,
        ]
    )


def _v2_odd_cards() -> tuple[Made, ...]:
    misplaced = {**v2(), "character_book": BOOK}
    unnumbered = {**BOOK, "scan_depth": "", "token_budget": ""}
    return (
        _json("v2 with a null book", v2(character_book=None)),
        _json("v2 with '' for numbers", v2(character_book=unnumbered)),
        _json("v2 without a name", v2(name=""), "data.name: it is empty"),
        _json("v2 with the book beside data", misplaced, "character_book: it stands beside"),
        _json("v2 without its spec", {"data": v2()["data"]}, "spec: it is missing"),
        _json("v2 with a number for its version", v2(character_version=1.1)),
        _json("v2 with nulls", v2(scenario=None, mes_example=None, tags=None)),
        _json(
            "v2 with the old fields beside data", {**PLAIN_V1, **v2(), "name": "Old"}, "name: it"
        ),
    )


def _v3_cards() -> tuple[Made, ...]:
    newer = {**v3(), "spec_version": "3.7", "future": {"kept": True}}
    dated = {
        "creation_date": 1700000000,
        "modification_date": "",
        "source": ["https://example.org/1"],
    }
    return (
        _json("v3", v3()),
        _json("v3 with a nickname", v3(nickname="Mi", creator_notes_multilingual={"de": "nein"})),
        _json("v3 of the future", newer, "newer version (3.7)"),
        _json("v3 with dates", v3(**dated, group_only_greetings=["All of you!"])),
    )


def _v3_files() -> tuple[Made, ...]:
    asset = chunk(b"tEXt", b"chara-ext-asset_:0\0" + base64.b64encode(b"sound"))
    backfilled = text_chunk("chara", v2(name="Mira of old"))
    portrait = png_file(pixels(shade=90))
    files = {
        "assets/icon/images/a.png": portrait,
        "assets/other/audio/a.mp3": b"ID3",
        "own.json": b"{}",
    }
    return (
        _png("v3 in a png", "ccv3", v3(assets=[{**MAIN_ICON, "uri": "ccdefault:"}])),
        _png("v3 with its v2 copy and an asset", "ccv3", v3(), backfilled, asset),
        _charx("v3 in a charx", v3(assets=[MAIN_ICON]), files),
        _charx("v3 in a charx without its icon", v3(assets=[MAIN_ICON]), {}, "is not in the file"),
    )
