"""Bad cards: each is refused by the name of the field, chunk or entry, and the limit."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile

import pytest

from appliance.errors import InvalidCard
from appliance.prompt.cards.reading import read_card
from tests.card_fixtures import (
    MAIN_ICON,
    PLAIN_V1,
    SIGNATURE,
    charx,
    chunk,
    encoded,
    pixels,
    png,
    png_file,
    text_chunk,
    v2,
    v3,
)

GOOD = png("chara", v2())


def zipped(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for path, data in entries:
            archive.writestr(path, data)
    return target.getvalue()


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def bad_crc() -> bytes:
    at = GOOD.index(b"tEXt") + 30
    return GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :]


def large_png() -> bytes:
    header = struct.pack(">IIBBBBB", 9000, 48, 8, 2, 0, 0, 0)
    return png_file([chunk(b"IHDR", header), text_chunk("chara", v2()), chunk(b"IEND", b"")])


def raw_text(keyword: bytes, text: bytes) -> bytes:
    header, data, end = pixels()
    return png_file([header, chunk(b"tEXt", keyword + b"\0" + text), data, end])


def encrypted() -> bytes:
    data = bytearray(charx(v3()))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def damaged_zip() -> bytes:
    data = bytearray(zipped(("card.json", encoded(v3())), method=zipfile.ZIP_STORED))
    data[60] ^= 1
    return bytes(data)


def lying_zip() -> bytes:
    """The directory says that the bomb is small."""
    bomb = b"\0" * (40 * 1024 * 1024)
    data = bytearray(zipped(("card.json", encoded(v3())), ("bomb", bomb)))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 1000)
    return bytes(data)


PATHS = [
    ".git/config",
    "a/.x",
    "../card.json",
    "/etc/passwd",
    "a/../../b",
    "C:\\x",
    "a\\b",
    "a//b",
    "a/./b",
    "a\x07b",
]
DEEP = b'{"name": "x", "first_mes": "", "deep": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
TWO_NAMES = b'{"spec": "chara_card_v2", "data": {"name": "A", "first_mes": "", "name": "B"}}'

REFUSED = {
    "empty": (b"", "card: the file is empty"),
    "jpeg": (b"\xff\xd8\xff\xe0" + bytes(20), "card: a JPEG image, which holds no card"),
    "webp": (b"RIFF" + bytes(20), "card: a WebP image, which holds no card"),
    "yaml": (b"# Mara\nid: mara\nname: Mara\n", "is published with `appliance prompt publish`"),
    "text": (b"hello", "no PNG, CHARX or JSON"),
    "huge": (b"{" + b" " * (16 * 1024 * 1024), "card: 16777217 bytes, the limit is 16777216"),
    "huge json": (b'{"a": "' + b"x" * 4_200_000 + b'"}', "the limit is 4194304"),
    "many values": (b'{"a": [' + b"0," * 500_000 + b"0]}", "more than 400000 values"),
    "deep": (DEEP, "nested deeper than 64"),
    "a little deep": (encoded(v2(extensions=nested(63))), "nested deeper than 64"),
    "no json": (b"{nope}", "card: not JSON"),
    "no utf-8": (b'{"name": "\xff"}', "card: not UTF-8 at byte 10"),
    "infinity": (b'{"name": "x", "first_mes": "", "n": 1e999}', "a number is too large"),
    "nan": (b'{"name": "x", "first_mes": "", "n": NaN}', "NaN is no number"),
    "digits": (b'{"name": "x", "n": ' + b"9" * 5000 + b"}", "card: not JSON"),
    "two names": (TWO_NAMES, "the name 'name' stands twice"),
    "no card": (b'{"hello": 1}', "no character card"),
    "a lorebook": (b'{"spec": "lorebook_v3", "data": {}}', "spec: 'lorebook_v3' is none of"),
    "v4": (encoded({**v2(), "spec": "chara_card_v4"}), "spec: 'chara_card_v4' is none of"),
    "no data": (encoded({"spec": "chara_card_v2", "data": []}), "data: expected an object"),
    "name": (encoded(v2(name=["A", "B"])), "data.name: expected text"),
    "v1 name": (encoded({**PLAIN_V1, "name": 7}), "name: expected text"),
    "long name": (encoded(v2(name="x" * 129)), "data.name: 129 characters, the limit is 128"),
    "long text": (encoded(v2(scenario="x" * 262_145)), "data.scenario: 262145 characters"),
    "greetings": (encoded(v2(alternate_greetings={})), "data.alternate_greetings: expected a list"),
    "greeting": (encoded(v2(alternate_greetings=["", 1])), "data.alternate_greetings[1]: expected"),
    "65 greetings": (encoded(v2(alternate_greetings=["x"] * 65)), "65 texts, the limit is 64"),
    "nul": (encoded(v2(first_mes="a\0b")), "data.first_mes: text must not contain U+0000"),
    "surrogate": (
        json.dumps(v2(first_mes="a\ud800")).encode(),
        "data.first_mes: text holds half",
    ),
    "book": (encoded(v2(character_book=[1])), "data.character_book: expected an object"),
    "entry": (
        encoded(v2(character_book={"entries": [{"keys": ["a"], "content": {}}]})),
        "data.character_book.entries[0]",
    ),
    "signature": (SIGNATURE, "image: a damaged png"),
    "no end": (GOOD[:-12], "image: the file ends before its last chunk"),
    "cut chunk": (GOOD[:200], "chunk 'tEXt': the file ends in the middle"),
    "crc": (bad_crc(), "chunk 'tEXt': its CRC is wrong"),
    "no card in png": (png_file(pixels()), "lost it"),
    "large image": (large_png(), "9000 x 48 pixels, the limits are 8192"),
    "base64": (raw_text(b"chara", b"not base64!"), "chunk chara: not base64"),
    "base64 of no json": (raw_text(b"ccv3", base64.b64encode(b"nope")), "ccv3: not JSON"),
    "huge base64": (raw_text(b"ccv3", b"A" * 6_300_000), "chunk ccv3: 6300000 characters"),
    "two cards": (png("chara", v2(), text_chunk("chara", v2(name="Other"))), "two different cards"),
    "no card.json": (zipped(("x", b"")), "charx: there is no card.json"),
    "card.json in a folder": (zipped(("a/card.json", b"{}")), "charx: there is no card.json"),
    "cut zip": (charx(v3())[:-30], "charx: the zip file is damaged"),
    "zip crc": (damaged_zip(), "charx: the zip file is damaged"),
    "encrypted": (encrypted(), "charx: 'card.json' is encrypted"),
    "lzma": (zipped(("card.json", encoded(v3())), method=zipfile.ZIP_LZMA), "packed in a way"),
    "many entries": (
        zipped(("card.json", encoded(v3())), *((f"{i}", b"") for i in range(300))),
        "charx: more than 64 entries",
    ),
    "bomb": (
        zipped(("card.json", encoded(v3())), ("bomb", b"\0" * (40 * 1024 * 1024))),
        "charx: 'bomb' unpacks to more than 100 times",
    ),
    "lying bomb": (lying_zip(), "charx: the zip file is damaged"),
    "no charx json": (zipped(("card.json", b"[]")), "card.json: expected a JSON object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_card_is_refused_by_name(case: str) -> None:
    data, said = REFUSED[case]
    with pytest.raises(InvalidCard) as caught:
        read_card(data)
    assert said in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.code == "invalid_card"
    assert caught.value.param


@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_a_zip_leads_out_of_it(path: str) -> None:
    with pytest.raises(InvalidCard, match="is no path inside of the file"):
        read_card(zipped(("card.json", encoded(v3())), (path, b"x")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_two_cards_of_one_name_is_refused() -> None:
    data = zipped(("card.json", encoded(v3())), ("card.json", encoded(v3(name="Other"))))
    with pytest.raises(InvalidCard, match=r"charx: 'card\.json' is in the zip twice"):
        read_card(data)


def test_files_that_unpack_to_too_much_together_are_refused() -> None:
    block = b"".join(number.to_bytes(64) for number in range(2**15))  # packs to a tenth or so
    files = {f"{number}": block for number in range(9)}
    few = {path: files[path] for path in list(files)[:6]}
    assert len(read_card(charx(v3(), few)).files) == 6
    with pytest.raises(InvalidCard, match="charx: it unpacks to more than 16777216 bytes"):
        read_card(charx(v3(), files))


def test_what_cannot_be_shown_is_kept_and_not_shown() -> None:
    fields = {"tags": ["\ud83d", "a\x00", "fine"], "creator": 10**400, "character_version": 2}
    document = v3(**fields) | {"spec_version": 10**400}
    card = read_card(json.dumps(document).encode())
    assert (card.tags, card.creator, card.character_version) == (("fine",), "", "2")
    assert any("creator" in warning for warning in card.warnings)
    assert any("spec_version" in warning for warning in card.warnings)
    assert all(len(warning) < 300 for warning in card.warnings)


def test_what_follows_the_end_of_an_image_is_left_out_with_a_warning() -> None:
    card = read_card(GOOD + b"PK\x03\x04 something else")
    assert card.warnings == ("image: what followed its end was left out",)
    assert card.image is not None
    assert card.image.data.endswith(b"IEND\xaeB`\x82")


def test_an_icon_that_is_no_image_is_kept_and_not_shown() -> None:
    data = charx(v3(assets=[MAIN_ICON]), {"assets/icon/images/a.png": b"<svg onload=alert(1)>"})
    card = read_card(data)
    assert card.image is None
    assert "not a PNG, JPEG or WebP image; it is kept, and not shown" in card.warnings[0]
    assert card.files["assets/icon/images/a.png"].startswith(b"<svg")
