"""From one version of the format to another, and what the other one cannot say. Pure; knows no files."""

from __future__ import annotations

from typing import Any

from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.document import V1_FIELDS
from appliance.prompt.cards.json_document import written

_FRAME = ("spec", "spec_version", "data")
_SINCE_V2: dict[str, Any] = {
    "creator_notes": "",
    "system_prompt": "",
    "post_history_instructions": "",
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}
_SINCE_V3 = (
    "assets",
    "nickname",
    "creator_notes_multilingual",
    "source",
    "group_only_greetings",
    "creation_date",
    "modification_date",
)
_ORDER = (Version.V1, Version.V2, Version.V3)


def document_as(card: Card, version: Version) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The card's document in a version, and the paths of the fields it cannot carry."""
    document = card.document()
    lost: list[str] = []
    if card.version is not Version.V1:
        document.update(spec=card.version.spec)  # a card may have been read without one
    at, to = _ORDER.index(card.version), _ORDER.index(version)
    for step in range(at, to):
        document = _v2_of_v1(document, lost) if step == 0 else _v3_of_v2(document)
    for step in range(at, to, -1):
        document = _v1_of_v2(document, lost) if step == 1 else _v2_of_v3(document, lost)
    return document, tuple(lost)


def text_as(card: Card, version: Version) -> tuple[str, tuple[str, ...]]:
    """The same as JSON text: as it came when the version is the card's own."""
    if version is card.version:
        return card.text, ()
    document, lost = document_as(card, version)
    return written(document), lost


def _v2_of_v1(document: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    fields = {name: document.get(name) or "" for name in V1_FIELDS}
    others = {name: value for name, value in document.items() if name not in V1_FIELDS}
    lost += [name for name in _FRAME if name in others]
    return {
        **others,
        "spec": Version.V2.spec,
        "spec_version": "2.0",
        "data": {**fields, **_SINCE_V2},
    }


def _v3_of_v2(document: dict[str, Any]) -> dict[str, Any]:
    data = dict(document["data"])
    misplaced = document.pop("character_book", None)
    book = data.pop("character_book", None) or misplaced
    if isinstance(book, dict):
        data["character_book"] = _with_use_regex(book)
    data.setdefault("extensions", {})
    data.setdefault("group_only_greetings", [])
    return {**document, "spec": Version.V3.spec, "spec_version": "3.0", "data": data}


def _with_use_regex(book: dict[str, Any]) -> dict[str, Any]:
    """V3 asks for the field; V2 has plain keys alone."""
    entries = book.get("entries")
    if not isinstance(entries, list):
        return book
    return {
        **book,
        "entries": [
            {"use_regex": False, **entry} if isinstance(entry, dict) else entry for entry in entries
        ],
    }


def _v2_of_v3(document: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    data = dict(document["data"])
    for name in _SINCE_V3:
        if _says_something(data.pop(name, None)):
            lost.append(f"data.{name}")
    book = data.get("character_book")
    entries = book.get("entries") if isinstance(book, dict) else None
    if any(isinstance(entry, dict) and entry.get("use_regex") for entry in entries or ()):
        lost.append("data.character_book.entries: use_regex")
    return {**document, "spec": Version.V2.spec, "spec_version": "2.0", "data": data}


def _v1_of_v2(document: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    data = document["data"]
    lost += [
        f"data.{name}"
        for name, value in data.items()
        if name not in V1_FIELDS and _says_something(value)
    ]
    others = {
        name: value
        for name, value in document.items()
        if name not in _FRAME and name not in V1_FIELDS
    }
    return {**{name: data.get(name) or "" for name in V1_FIELDS}, **others}


def _says_something(value: Any) -> bool:
    return value is not None and value not in ("", [], {})
