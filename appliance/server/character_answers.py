"""Characters as JSON. Their system texts stay with the server."""

from __future__ import annotations

from typing import Any

from appliance.prompt.characters import CharacterVersion
from appliance.prompt.templates.lint import SAMPLE


def character_fields(version: CharacterVersion) -> dict[str, Any]:
    """One character. `avatar` is where its image is, with the version in it; null without one."""
    character, card = version.character, version.card
    address = f"/v1/characters/{character.id}/avatar?v={version.version[:12]}"
    return {
        "id": character.id,
        "name": character.name,
        "description": character.description,
        "greeting": character.greeting,
        "greetings": len(version.greetings(SAMPLE)) if card is None else len(card.greetings),
        "suggestions": character.suggestions,
        "avatar": address if version.has_portrait else None,
        "is_card": card is not None,
        "group_greetings": 0 if card is None else len(card.group_only_greetings),
        "creator": "" if card is None else card.creator,
        "character_version": "" if card is None else card.character_version,
        "tags": () if card is None else card.tags,
    }
