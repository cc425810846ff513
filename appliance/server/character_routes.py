"""Characters over HTTP: listed, imported from cards, exported to cards, their portraits. Owns no card.

Characters are the operator's: everybody sees them and shares their text in the cache, so only the
operator may add one.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from appliance.errors import InvalidRequest, NotAllowed, NotFound
from appliance.prompt.cards.bundle import card_in
from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.reading import CARD_BYTES_MAX, read_card
from appliance.prompt.cards.writing import FileKind, write_card
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.lore.lint import lore_findings
from appliance.server.body import read_file
from appliance.server.character_answers import character_fields
from appliance.server.services import SERVICES
from appliance.server.ticket import TICKET

CARD_TYPES = (
    "application/json",
    "image/png",
    "image/apng",
    "application/zip",
    "application/octet-stream",
)
"""Content types that a card's file may be sent with; what it is, its first bytes say."""

_IMAGE_HEADERS = {
    # A stranger's bytes: shown as the image they begin as, and as nothing else.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
_HEADER_CHARACTERS_MAX = 1000

T = TypeVar("T")


async def list_characters(request: web.Request) -> web.Response:
    """GET /v1/characters: whom one can talk to, the default one first; whether the caller may import."""
    characters = request.app[SERVICES].catalog.current
    chosen = characters.get(None)
    others = [version for version in characters.by_id.values() if version is not chosen]
    body = {
        "characters": [character_fields(version) for version in (chosen, *others)],
        "may_import": request[TICKET].caller.is_operator,
    }
    return _json(body)


async def import_card(request: web.Request) -> web.Response:
    """POST /v1/characters?id: a card's file; 201 and the character, 200 when this card was there."""
    services, caller = request.app[SERVICES], request[TICKET].caller
    if not caller.is_operator:
        raise NotAllowed(
            "Only the operator's key may import characters (server.api_keys: operator)."
        )
    services.readiness.require_schema()
    character_id = request.query.get("id")
    data = await read_file(request, CARD_TYPES, CARD_BYTES_MAX, services.config.server)
    card = await asyncio.to_thread(read_card, data)
    imported = await services.card_import.add(card, character_id=character_id, author=caller.tenant)
    body = {
        "character": character_fields(imported.version),
        "version": imported.version.version,
        "created": imported.is_new,
        "warnings": [
            *card.warnings,
            *(found.sentence for found in lore_findings(imported.version.lore, "character_book")),
        ],
    }
    return _json(body, status=201 if imported.is_new else 200)


async def export_card(request: web.Request) -> web.Response:
    """GET /v1/characters/{id}/card?format&version: the card as a file.

    The header `X-Card-Not-Carried` names what the file cannot hold.
    """
    version = _version(request)
    kind = _choice(request, "format", {kind.value: kind for kind in FileKind}, FileKind.JSON)
    shapes: dict[str, Version | None] = {shape.value: shape for shape in Version}
    shape = _choice(request, "version", shapes, None)
    card = await _card(request, version)
    written = await asyncio.to_thread(write_card, card, kind, shape)
    response = web.Response(body=written.data, content_type=written.content_type)
    name = f"{version.character.id}.{kind.value}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    if written.not_carried:
        # A field's name is a stranger's text: a header has room for plain characters alone.
        named = ", ".join(written.not_carried).encode("ascii", "replace").decode()
        response.headers["X-Card-Not-Carried"] = "".join(
            character if character.isprintable() else "?" for character in named
        )[:_HEADER_CHARACTERS_MAX]
    return response


async def portrait(request: web.Request) -> web.Response:
    """GET /v1/characters/{id}/avatar: the card's image as it came."""
    version = _version(request)
    if not version.has_portrait:
        raise NotFound("This character has no image.", param="id")
    # The version names all of its files, so the image needs not be read to know that it is the same.
    if any(given.value == version.version for given in request.if_none_match or ()):
        response = web.Response(status=304, headers=_IMAGE_HEADERS)
    else:
        image = (await _card(request, version)).image
        assert image is not None, "a version has the portrait that its files have"
        headers = {**_IMAGE_HEADERS, "Content-Type": image.content_type}
        response = web.Response(body=image.data, headers=headers)
    response.etag = version.version
    return response


def _version(request: web.Request) -> CharacterVersion:
    version = request.app[SERVICES].catalog.current.get(request.match_info["id"])
    if version.card is None:
        raise NotFound(f"{version.character.id} is no card.", param="id")
    return version


async def _card(request: web.Request, version: CharacterVersion) -> Card:
    """The card with its image and files, which only the database has."""
    catalog = request.app[SERVICES].catalog
    bundle = await catalog.bundle(version.character.id, version.version)
    return await asyncio.to_thread(card_in, bundle)


def _choice(request: web.Request, name: str, known: dict[str, T], default: T) -> T:
    given = request.query.get(name)
    if given is None:
        return default
    if given not in known:
        raise InvalidRequest(f"{name}: expected one of {', '.join(known)}.", param=name)
    return known[given]


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json"
    )
