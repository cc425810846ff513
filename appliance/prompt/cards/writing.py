"""A card as a file again: JSON, PNG or CHARX, and what that kind of file cannot carry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.charx import CARD_FILE, write_charx
from appliance.prompt.cards.convert import document_as, text_as
from appliance.prompt.cards.json_document import written
from appliance.prompt.cards.png import has_assets, plain_png, write_png
from appliance.prompt.cards.reading import icons_of

_ICON_FILE = "assets/icon/images/main."
_PLAIN = (0xDC, 0xD7, 0xCB)
_DEFAULT_URI = "ccdefault:"


class FileKind(Enum):
    """A kind of card file, by the end of its name."""

    JSON = "json"
    PNG = "png"
    CHARX = "charx"


CONTENT_TYPES = {
    FileKind.JSON: "application/json",
    FileKind.PNG: "image/png",
    FileKind.CHARX: "application/zip",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A card's file. `not_carried` names what the card has and the file has not."""

    data: bytes
    content_type: str
    not_carried: tuple[str, ...]


def write_card(card: Card, kind: FileKind, version: Version | None = None) -> Written:
    """The card as a file of this kind, in its own version unless another is asked for.

    The JSON document is the one that was read, character for character, unless the version changes.
    A CHARX is V3, whatever is asked: the format knows no other.
    """
    if kind is FileKind.CHARX:
        return _charx(card)
    text, lost = text_as(card, version or card.version)
    json = text.encode("utf-8")
    others = _files_beside_portrait(card)
    if kind is FileKind.JSON:
        not_carried = (*lost, *(["image"] if card.from_png else []), *others)
        return _written(kind, json, not_carried)
    image = card.image
    if image is None or image.kind != "png":
        lost = (*lost, f"image: it is {image.kind}, and no PNG") if image is not None else lost
        image = plain_png(256, 384, _PLAIN)
    keyword = "ccv3" if (version or card.version) is Version.V3 else "chara"
    return _written(kind, write_png(image, keyword, json), (*lost, *others))


def _charx(card: Card) -> Written:
    files = dict(card.files)
    text, lost = text_as(card, Version.V3)
    if card.from_png:
        assert card.image is not None
        document, lost = document_as(card, Version.V3)
        path = _ICON_FILE + ("jpg" if card.image.kind == "jpeg" else card.image.kind)
        files[path] = card.image.data
        _name_icon(document["data"], path)
        text = written(document)
        if has_assets(card.image):
            lost = (*lost, "chunks chara-ext-asset_: they stay in the image")
    files[CARD_FILE] = text.encode("utf-8")
    return _written(FileKind.CHARX, write_charx(files), lost)


def _name_icon(data: dict[str, Any], path: str) -> None:
    """Point the main icon to a file: the default one is whatever image the card is in."""
    assets = data.get("assets")
    named = list(assets) if isinstance(assets, list) else []
    for asset in icons_of({"data": {"assets": named}}):
        if asset.get("uri") == _DEFAULT_URI:
            asset.update(uri=f"embeded://{path}", ext=path.rpartition(".")[2])
            break
    else:
        has_main = any(icon.get("name") == "main" for icon in icons_of({"data": data}))
        named.append(
            {
                "type": "icon",
                "uri": f"embeded://{path}",
                "name": "portrait" if has_main else "main",
                "ext": path.rpartition(".")[2],
            }
        )
    data["assets"] = named


def _files_beside_portrait(card: Card) -> tuple[str, ...]:
    portrait = None if card.image is None else card.image.data
    return tuple(sorted(path for path, data in card.files.items() if data != portrait))


def _written(kind: FileKind, data: bytes, not_carried: tuple[str, ...]) -> Written:
    return Written(data=data, content_type=CONTENT_TYPES[kind], not_carried=not_carried)
