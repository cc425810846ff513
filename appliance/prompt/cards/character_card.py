"""A character that is no card as one of the format V3, so that other programs can read it.

Never: a template, which no card has a place for, or a character's portrait.
"""

from __future__ import annotations

from typing import Any

import msgspec

from appliance.prompt.bundle import Bundle
from appliance.prompt.cards.card import Card, Version
from appliance.prompt.cards.document import read_document
from appliance.prompt.cards.json_document import written
from appliance.prompt.character_file import Character
from appliance.prompt.characters import lorebook_document
from appliance.prompt.lore.placement import DEFAULT_PLACEMENT
from appliance.prompt.templates.built_in import DEFAULT_TEMPLATE

_BRACES = ("{{", "<user>", "<char>", "<bot>")


def card_of_character(character: Character, bundle: Bundle) -> tuple[Card, tuple[str, ...]]:
    """The card, and what the character has and a card has not.

    Raises InvalidCard naming the field for a text that is too large for a card.
    """
    data: dict[str, Any] = {
        "name": character.name,
        "description": "",
        "personality": "",
        "scenario": "",
        "first_mes": character.greeting,
        "mes_example": "",
        "creator_notes": character.description,
        "system_prompt": character.system,
        "post_history_instructions": character.post_history,
        "alternate_greetings": [],
        "group_only_greetings": [],
        "tags": [],
        "creator": "",
        "character_version": bundle.version[:12],
        "extensions": {"appliance": _own(character)},
    }
    book = _book(bundle)
    if book is not None:
        data["character_book"] = book
    document = {"spec": Version.V3.spec, "spec_version": "3.0", "data": data}
    return read_document(written(document).encode(), where="card"), _lost(character)


def _own(character: Character) -> dict[str, Any]:
    """What only this program reads."""
    if character.lore_placement is DEFAULT_PLACEMENT:
        return {}
    return {"lore_placement": character.lore_placement}


def _book(bundle: Bundle) -> dict[str, Any] | None:
    """The lorebook as it is written; a `lorebook_v3` without its frame, which a card has none of."""
    book = lorebook_document(bundle)
    if book is not None and book.get("spec") == "lorebook_v3" and "data" in book:
        book = book["data"]
    return {"extensions": {}, **book} if isinstance(book, dict) else None


def _lost(character: Character) -> tuple[str, ...]:
    lost = []
    if character.template != DEFAULT_TEMPLATE:
        lost.append(f"template: {character.template}")
    settings = {"sampling": character.sampling, "truncation": character.truncation}
    for name, held in settings.items():
        set_here = [key for key, value in msgspec.structs.asdict(held).items() if value is not None]
        lost += [f"{name}: {', '.join(set_here)}"] if set_here else []
    if character.suggestions:
        lost.append(f"suggestions: {len(character.suggestions)}")
    texts = (character.system, character.greeting, character.post_history)
    if any(mark in text.lower() for text in texts for mark in _BRACES):
        lost.append("braces: what is text here is a macro in a card")
    return tuple(lost)
