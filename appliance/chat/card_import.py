"""Brings a card in as a character: under an id of its own, never over another of the same name.

Owns which id and version a card gets. Never: reads a file, or decides who may import.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from dataclasses import dataclass

from appliance.chat.catalog import Catalog
from appliance.errors import Conflict, InvalidRequest, LabelProtected, NotFound
from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.bundle import card_bundle
from appliance.prompt.cards.card import Card
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.store.prompt_records import PRODUCTION, Label

SAME_NAMES_MAX = 200
"""Characters of one name; the next one has to be given an id."""

_ID_CHARACTERS_MAX = 56
_NOT_OF_AN_ID = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The character of a card. `is_new` is False when this very card was there already."""

    version: CharacterVersion
    is_new: bool


class CardImport:
    """Imports of one server, one at a time, so that two of them cannot take one id."""

    def __init__(self, catalog: Catalog) -> None:
        self._registry = catalog.registry
        self._catalog = catalog
        self._alone = asyncio.Lock()

    async def add(
        self, card: Card, *, character_id: str | None, author: str, is_confirmed: bool = False
    ) -> Imported:
        """Publish a card as a new version of the character that is named, else of a fresh one.

        The same card again changes nothing. Raises InvalidBundle for an id that cannot be one,
        LabelProtected for a character whose production version is protected, unless the move is
        confirmed; Conflict when somebody else moves it meanwhile or there are SAME_NAMES_MAX of this
        name; StorageUnavailable. What is refused is not published, either.
        """
        async with self._alone:
            if character_id is not None:
                bundle = card_bundle(card, character_id)
                at = await self._version_at(bundle, is_confirmed=is_confirmed)
            else:
                bundle, at = await self._fresh(card)
            # Tried out before anything is stored: a card that says nothing usable imports nothing.
            version = await asyncio.to_thread(CharacterVersion.of, bundle)
            if at == bundle.version:
                return Imported(version=version, is_new=False)
            why = f"imported the card {card.name}"
            await self._registry.publish(
                bundle.name, bundle.version, bundle.files, author=author, message=why
            )
            await self._registry.move(
                bundle.name,
                PRODUCTION,
                bundle.version,
                seen=at,
                author=author,
                message=why,
                confirmed=is_confirmed,
            )
            await self._catalog.reload()
            return Imported(version=version, is_new=True)

    async def remove(self, character_id: str, *, author: str, is_confirmed: bool) -> None:
        """Take a character from the list: no new conversation begins with it.

        Its versions stay, for the conversations that hold them; an import under its id, or `appliance
        prompt label`, brings it back. Raises InvalidRequest for the default character, which every
        conversation may fall back to, NotFound, LabelProtected and Conflict as `add`.
        """
        if character_id == DEFAULT_CHARACTER:
            raise InvalidRequest("the default character cannot be removed", param="id")
        async with self._alone:
            at = await self._in_production(character_id)
            if at is None:
                raise NotFound(f"no character {character_id!r}", param="id")
            await self._registry.remove_label(
                character_id,
                PRODUCTION,
                seen=at.version,
                author=author,
                message="removed from the list",
                confirmed=is_confirmed,
            )
            await self._catalog.reload()

    async def _version_at(self, bundle: Bundle, *, is_confirmed: bool) -> str | None:
        """The version in production, where it may be moved to that of a bundle."""
        at = await self._in_production(bundle.name)
        if at is None:
            return None
        if at.protected and at.version != bundle.version and not is_confirmed:
            raise LabelProtected(
                f"{bundle.name} is protected and stays at {at.version[:12]}: confirm that it is to be "
                "replaced (confirm=production)",
                param="confirm",
            )
        return at.version

    async def _fresh(self, card: Card) -> tuple[Bundle, str | None]:
        """(bundle, version in production): under the first id that is free or has this very card."""
        taken = frozenset(await self._registry.names())
        base = id_of(card.name)
        for number in range(1, SAME_NAMES_MAX + 1):
            bundle = card_bundle(card, base if number == 1 else f"{base}-{number}")
            if bundle.name not in taken:
                return bundle, None
            at = await self._in_production(bundle.name)
            if at is not None and at.version == bundle.version:
                return bundle, at.version
            if at is None and bundle.version in await self._versions(bundle.name):
                return bundle, None  # it was removed, and comes back
        raise Conflict(
            f"there are {SAME_NAMES_MAX} characters called {card.name}: name an id for this one"
        )

    async def _in_production(self, name: str) -> Label | None:
        labels = await self._registry.labels(name)
        return next((label for label in labels if label.label == PRODUCTION), None)

    async def _versions(self, name: str) -> frozenset[str]:
        return frozenset(one.version for one in await self._registry.versions(name))


def id_of(name: str) -> str:
    """An id that reads like a name: its letters and digits without accents, parted by hyphens."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = _NOT_OF_AN_ID.sub("-", plain).strip("-")[:_ID_CHARACTERS_MAX].strip("-")
    return words or "character"
