"""Cards of every version and file: read, written again without loss, turned into other versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.prompt.cards.card import Version
from appliance.prompt.cards.png import read_png
from appliance.prompt.cards.reading import read_card
from appliance.prompt.cards.writing import FileKind, write_card
from tests.card_fixtures import (
    BOOK,
    JPEG,
    MAIN_ICON,
    PLAIN_V1,
    WEBP,
    Made,
    charx,
    chunk,
    encoded,
    pixels,
    png,
    png_file,
    text_chunk,
    thirty_cards,
    v2,
    v3,
)

CARDS = thirty_cards()


def document_of(data: bytes) -> dict[str, Any]:
    return read_card(data).document()


@pytest.mark.parametrize("made", CARDS, ids=lambda made: made.name)
def test_a_card_is_read_whole_and_written_again_without_loss(made: Made) -> None:
    card = read_card(made.data)
    assert card.document() == made.document
    said = " ".join(card.warnings)
    assert made.warned in said if made.warned else not said
    written = write_card(card, FileKind(made.kind))
    again = read_card(written.data)
    assert (again.text, again.image, again.files) == (card.text, card.image, card.files)
    assert written.not_carried == ()


@pytest.mark.parametrize("made", CARDS, ids=lambda made: made.name)
@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.value)
def test_every_kind_of_file_holds_every_card(made: Made, kind: FileKind) -> None:
    card = read_card(made.data)
    again = read_card(write_card(card, kind).data)
    assert again.greetings == card.greetings
    assert again.description == card.description
    if kind is not FileKind.CHARX:
        assert again.text == card.text


def test_a_book_beside_the_data_is_used_and_goes_along_to_v3() -> None:
    card = read_card(next(made.data for made in CARDS if "book beside" in made.name))
    (book,) = card.lorebooks
    assert book.entries[0].keys == ("owl",)
    again = read_card(write_card(card, FileKind.JSON, Version.V3).data)
    assert [entry.digest for entry in again.lorebooks[0].entries] == [book.entries[0].digest]
    assert not again.warnings


def test_there_are_thirty_cards() -> None:
    assert len(CARDS) == 30
    assert len({made.name for made in CARDS}) == 30


def test_the_newer_chunk_is_preferred_and_its_copy_trimmed() -> None:
    data = png("ccv3", v3(name="New"), text_chunk("chara", v2(name="Old")))
    card = read_card(data)
    assert (card.name, card.version) == ("New", Version.V3)
    assert card.image is not None
    assert b"chara\0" not in card.image.data
    assert read_png(write_card(card, FileKind.PNG).data).keyword == "ccv3"


def test_the_image_keeps_its_other_chunks() -> None:
    text = chunk(b"tEXt", b"Software\0a painter")
    card = read_card(png("chara", v2(), text))
    assert card.image is not None
    header, data, end = pixels()
    assert card.image.data == png_file([header, data, text, end])
    assert (card.image.width, card.image.height) == (32, 48)


@pytest.mark.parametrize("version", Version)
@pytest.mark.parametrize("name", ["v1", "v2 with a book", "v3 with a nickname", "v2 with nulls"])
def test_what_a_version_cannot_carry_is_named_and_all_else_is_there(
    name: str, version: Version
) -> None:
    card = read_card(next(made.data for made in CARDS if made.name == name))
    written = write_card(card, FileKind.JSON, version)
    again = read_card(written.data)
    assert again.version is version
    assert again.greetings == card.greetings
    assert (again.name, again.scenario) == (card.name, card.scenario)
    kept = {"data.nickname": again.nickname, "data.character_book": again.lorebooks}
    had = {"data.nickname": card.nickname, "data.character_book": card.lorebooks}
    for path, value in kept.items():
        assert (path in written.not_carried) == bool(had[path] and not value), path


def test_up_and_down_again_is_the_same_document() -> None:
    v1 = {**PLAIN_V1, "talkativeness": "0.5"}
    up = write_card(read_card(encoded(v1)), FileKind.JSON, Version.V3)
    assert up.not_carried == ()
    down = write_card(read_card(up.data), FileKind.JSON, Version.V1)
    assert json.loads(down.data) == v1
    assert down.not_carried == ()
    document = v2(extensions={"x": 1}, tags=[])
    up = write_card(read_card(encoded(document)), FileKind.JSON, Version.V3)
    down = write_card(read_card(up.data), FileKind.JSON, Version.V2)
    assert json.loads(down.data) == document


def test_a_json_file_says_that_the_image_is_not_in_it() -> None:
    assert write_card(read_card(png("chara", v2())), FileKind.JSON).not_carried == ("image",)
    files = {"assets/icon/images/a.png": png_file(pixels()), "own.json": b"{}"}
    card = read_card(charx(v3(assets=[MAIN_ICON]), files))
    assert write_card(card, FileKind.PNG).not_carried == ("own.json",)
    assert write_card(card, FileKind.CHARX).not_carried == ()


def test_a_png_card_becomes_a_charx_with_its_image_as_the_icon() -> None:
    for assets in (None, [], [{**MAIN_ICON, "uri": "ccdefault:"}], [{**MAIN_ICON, "type": "x"}]):
        card = read_card(png("ccv3", v3(assets=assets)))
        again = read_card(write_card(card, FileKind.CHARX).data)
        assert again.image == card.image
        icons = [asset for asset in again.document()["data"]["assets"] if asset["type"] == "icon"]
        assert [icon["name"] for icon in icons] == ["main"]


@pytest.mark.parametrize(("image", "kind"), [(JPEG, "jpeg"), (WEBP, "webp")])
def test_icons_may_be_jpeg_or_webp(image: bytes, kind: str) -> None:
    card = read_card(charx(v3(assets=[MAIN_ICON]), {"assets/icon/images/a.png": image}))
    assert card.image is not None
    assert (card.image.kind, card.image.width, card.image.height) == (kind, 32, 48)
    assert f"image: it is {kind}, and no PNG" in write_card(card, FileKind.PNG).not_carried


def test_a_v2_book_gets_the_field_that_v3_asks_for_and_loses_none() -> None:
    up = write_card(read_card(encoded(v2(character_book=BOOK))), FileKind.JSON, Version.V3)
    (entry,) = json.loads(up.data)["data"]["character_book"]["entries"]
    (given,) = BOOK["entries"]
    assert entry == {"use_regex": False, **given}
