"""Characters over HTTP: listed, imported from cards, exported to cards, their portraits. Owns no card.

Characters are the operator's: everybody sees them and shares their text in the cache, so only the
operator may add one.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from aiohttp import web

from appliance.errors import InvalidRequest, NotAllowed, NotFound
from appliance.prompt.cards.bundle import card_in
from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.character_card import card_of_character
from appliance.prompt.cards.reading import CARD_BYTES_MAX, read_card
from appliance.prompt.cards.writing import FileKind, write_card
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.lore.lint import lore_findings
from appliance.server.body import read_file
from appliance.server.character_answers import character_fields
from appliance.server.json_answer import json_answer
from appliance.server.services import SERVICES, Services
from appliance.server.ticket import TICKET
from appliance.store.prompt_records import PRODUCTION

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
    return json_answer(body)


async def import_card(request: web.Request) -> web.Response:
    """POST /v1/characters?id&confirm: a card's file; 201 and the character, 200 when this card was there.

    `confirm=production` replaces a protected character.
    """
    services, author = _operators(request, "import")
    character_id = request.query.get("id")
    data = await read_file(request, CARD_TYPES, CARD_BYTES_MAX)
    card = await asyncio.to_thread(read_card, data)
    imported = await services.card_import.add(
        card, character_id=character_id, author=author, is_confirmed=_is_confirmed(request)
    )
    body = {
        "character": character_fields(imported.version),
        "version": imported.version.version,
        "created": imported.is_new,
        "warnings": [
            *card.warnings,
            *(found.sentence for found in lore_findings(imported.version.lore, "character_book")),
        ],
    }
    return json_answer(body, status=201 if imported.is_new else 200)


async def remove_character(request: web.Request) -> web.Response:
    """DELETE /v1/characters/{id}?confirm: 204; it is listed no more, conversations with it go on."""
    services, author = _operators(request, "remove")
    await services.card_import.remove(
        request.match_info["id"], author=author, is_confirmed=_is_confirmed(request)
    )
    return web.Response(status=204)


async def export_card(request: web.Request) -> web.Response:
    """GET /v1/characters/{id}/card?format&version: the card as a file; of a character that is none, one
    made of it.

    The header `X-Card-Not-Carried` names what the file cannot hold.
    """
    version = request.app[SERVICES].catalog.current.get(request.match_info["id"])
    kind = _choice(request, "format", {kind.value: kind for kind in FileKind}, FileKind.JSON)
    shapes: dict[str, Version | None] = {shape.value: shape for shape in Version}
    shape = _choice(request, "version", shapes, None)
    card, lost = await _card(request, version)
    written = await asyncio.to_thread(write_card, card, kind, shape)
    response = web.Response(body=written.data, content_type=written.content_type)
    name = f"{version.character.id}.{kind.value}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    not_carried = (*lost, *written.not_carried)
    if not_carried:
        # A field's name is a stranger's text: a header has room for plain characters alone.
        named = ", ".join(not_carried).encode("ascii", "replace").decode()
        response.headers["X-Card-Not-Carried"] = "".join(
            character if character.isprintable() else "?" for character in named
        )[:_HEADER_CHARACTERS_MAX]
    return response


async def portrait(request: web.Request) -> web.Response:
    """GET /v1/characters/{id}/avatar: the card's image as it came."""
    version = request.app[SERVICES].catalog.current.get(request.match_info["id"])
    if not version.has_portrait:
        raise NotFound("This character has no image.", param="id")
    # The version names all of its files, so the image needs not be read to know that it is the same.
    if any(given.value == version.version for given in request.if_none_match or ()):
        response = web.Response(status=304, headers=_IMAGE_HEADERS)
    else:
        card, _ = await _card(request, version)
        image = card.image
        assert image is not None, "a version has the portrait that its files have"
        headers = {**_IMAGE_HEADERS, "Content-Type": image.content_type}
        response = web.Response(body=image.data, headers=headers)
    response.etag = version.version
    return response


def _operators(request: web.Request, deed: str) -> tuple[Services, str]:
    """The services, and who asks, which must be the operator."""
    services, caller = request.app[SERVICES], request[TICKET].caller
    if not caller.is_operator:
        raise NotAllowed(
            f"Only the operator's key may {deed} characters (server.api_keys: operator)."
        )
    services.readiness.require_schema()
    return services, caller.tenant


def _is_confirmed(request: web.Request) -> bool:
    """Whether the protected label is named once more."""
    given = request.query.get("confirm")
    if given not in (None, PRODUCTION):
        raise InvalidRequest(f"confirm: expected {PRODUCTION}.", param="confirm")
    return given is not None


async def _card(request: web.Request, version: CharacterVersion) -> tuple[Card, tuple[str, ...]]:
    """The card with its image and files, which only the database has; what the card cannot have."""
    catalog = request.app[SERVICES].catalog
    bundle = await catalog.bundle(version.character.id, version.version)
    if version.card is not None:
        return await asyncio.to_thread(card_in, bundle), ()
    return await asyncio.to_thread(card_of_character, version.character, bundle)


def _choice(request: web.Request, name: str, known: dict[str, T], default: T) -> T:
    given = request.query.get(name)
    if given is None:
        return default
    if given not in known:
        raise InvalidRequest(f"{name}: expected one of {', '.join(known)}.", param=name)
    return known[given]
