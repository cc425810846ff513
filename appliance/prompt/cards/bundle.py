"""A card as the files of a bundle, and back: `card.json` as it came, its portrait, a CHARX's other files.

A stranger's files lie below a folder of their own, so that none of them can be taken for a character's or
a template. Never: where bundles are kept, or which character a card becomes.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.errors import InvalidCard
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.card import Card
from appliance.prompt.cards.charx import CARD_FILE
from appliance.prompt.cards.image import Image, read_image
from appliance.prompt.cards.reading import card_of_files

CHARX_FOLDER = "charx/"
_PORTRAIT = "portrait.png"


def card_bundle(card: Card, name: str) -> Bundle:
    """The bundle of a card under a character's id: the same card gives the same files."""
    files = {CARD_FILE: card.text.encode("utf-8")}
    files |= {CHARX_FOLDER + path: content for path, content in card.files.items()}
    if card.from_png:
        assert card.image is not None
        files[_PORTRAIT] = card.image.data
    return Bundle(name=name, files=files)


def card_in(bundle: Bundle) -> Card:
    """The card of a bundle that has one; raises InvalidCard naming the file and the field."""
    files = {
        path.removeprefix(CHARX_FOLDER): content
        for path, content in bundle.files.items()
        if path.startswith(CHARX_FOLDER)
    }
    card = card_of_files(bundle.files[CARD_FILE], files)
    portrait = bundle.files.get(_PORTRAIT)
    return card if portrait is None else replace(card, image=_png(portrait), from_png=True)


def _png(portrait: bytes) -> Image:
    image = read_image(portrait, _PORTRAIT)
    if image.kind != "png":
        raise InvalidCard(f"{_PORTRAIT}: a {image.kind} image", param=_PORTRAIT)
    return image
