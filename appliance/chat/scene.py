"""What a user has set for a conversation, as templates and macros see it. Pure; stores nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.prompt.cards.macros import DEFAULT_USER, Macros
from appliance.prompt.characters import Character
from appliance.prompt.templates.frozen_macros import Frozen
from appliance.store.records import Conversation, Persona, Scene


def scene_values(scene: Scene) -> Mapping[str, Any]:
    """The template inputs `user`, `persona` and `note`: "" for what is not set, and for a note that is
    frozen into the history."""
    persona = scene.persona or Persona()
    note = scene.note
    in_tail = note is not None and note.every is None
    return {
        "user": persona.name,
        "persona": persona.text,
        "note": note.text if note is not None and in_tail else "",
    }


def frozen_of(conversation: Conversation) -> Frozen:
    """The draws of a conversation: the same in each of its turns."""
    return Frozen(seed=conversation.conversation_id.bytes, started=conversation.created_at)


def macros_of(conversation: Conversation, character: Character) -> Macros:
    """What {{char}}, {{user}} and draws stand for in the lore of a conversation."""
    persona = conversation.scene.persona or Persona()
    return Macros(
        char=character.name,
        user=persona.name or DEFAULT_USER,
        frozen=frozen_of(conversation),
    )
