"""A card file of any kind to a card: its first bytes say what it is. Nothing is kept of a bad one."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from appliance.errors import InvalidCard
from appliance.prompt.cards.card import Card
from appliance.prompt.cards.charx import CARD_FILE, read_charx
from appliance.prompt.cards.document import read_document
from appliance.prompt.cards.image import PNG_SIGNATURE, Image, read_image
from appliance.prompt.cards.png import read_png

CARD_BYTES_MAX = 16 * 1024 * 1024
_ZIP = b"PK\x03\x04"
_LOOKED_AT_BYTES = 4096
_OTHER_IMAGES = {b"\xff\xd8\xff": "JPEG", b"RIFF": "WebP", b"GIF8": "GIF"}
_ID_LINE = re.compile(rb"^id:", re.MULTILINE)
_EMBEDDED = ("embeded://", "embedded://")
"""The format's own spelling, and the one that some writers take it for."""


def read_card(data: bytes) -> Card:
    """The card of a PNG, APNG, CHARX or JSON file.

    Raises InvalidCard naming the field, chunk or entry, and the limit, for a file that is too large,
    damaged, or no card.
    """
    if len(data) > CARD_BYTES_MAX:
        raise InvalidCard(f"card: {len(data)} bytes, the limit is {CARD_BYTES_MAX}", param="card")
    if data.startswith(PNG_SIGNATURE):
        found = read_png(data)
        card = read_document(found.json, where=found.keyword)
        return replace(
            card, image=found.image, from_png=True, warnings=found.warnings + card.warnings
        )
    if data.startswith(_ZIP):
        files = read_charx(data)
        document = files.pop(CARD_FILE)
        return card_of_files(document, files)
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return _with_portrait(read_document(data, where="card"))
    raise InvalidCard(f"card: {_what(data)}", param="card")


def _what(data: bytes) -> str:
    """What a file is that holds no card."""
    if not data:
        return "the file is empty"
    for beginning, kind in _OTHER_IMAGES.items():
        if data.startswith(beginning):
            return f"a {kind} image, which holds no card; no PNG, CHARX or JSON file"
    if _ID_LINE.search(data[:_LOOKED_AT_BYTES]):
        return (
            "no PNG, CHARX or JSON file; a character's YAML file is published with `appliance prompt "
            "publish`"
        )
    return "no PNG, CHARX or JSON file"


def card_of_files(document: bytes, files: dict[str, bytes]) -> Card:
    """The card of a CHARX's files without `card.json`, which is `document`."""
    card = read_document(document, where=CARD_FILE, files=files)
    return _with_portrait(card)


def _with_portrait(card: Card) -> Card:
    """The card with its main icon, if it is a file of the card or stands in the document itself."""
    image: Image | None = None
    warnings: tuple[str, ...] = ()
    for asset in icons_of(card.document()):
        uri = asset.get("uri")
        content = _content(uri, card.files) if isinstance(uri, str) else None
        if content is None:
            warnings = (f"data.assets: the icon {str(uri)[:80]!r} is not in the file",)
            continue
        try:
            image, warnings = read_image(content, "data.assets"), ()
        except InvalidCard as error:
            warnings = (f"{error.message}; it is kept, and not shown",)
        break
    return replace(card, image=image, warnings=card.warnings + warnings)


def icons_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The icons that a V3 document names in `data.assets`, that called `main` first."""
    data = document.get("data")
    assets = data.get("assets") if isinstance(data, dict) else None
    if not isinstance(assets, list):
        return []
    icons = [asset for asset in assets if isinstance(asset, dict) and asset.get("type") == "icon"]
    return sorted(icons, key=lambda asset: bool(asset.get("name") != "main"))


def _content(uri: str, files: Mapping[str, bytes]) -> bytes | None:
    """The bytes that an asset's URI names; nothing is ever fetched."""
    for scheme in _EMBEDDED:
        if uri.startswith(scheme):
            return files.get(uri.removeprefix(scheme))
    if uri.startswith("data:image/") and ";base64," in uri[:64]:
        try:
            return base64.b64decode(uri.partition(";base64,")[2], validate=True)
        except ValueError:
            return None
    return None
