"""What stands around the history of one conversation: its character's texts, and what its user has set.

Never: the history itself, or which version of a character it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from appliance.chat.history import beginning_of
from appliance.chat.prompting import off_loop
from appliance.errors import InvalidCard, TemplateError
from appliance.prompt.cards.macros import DEFAULT_USER, Macros
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.templates.parts import Rendered
from appliance.store.records import Conversation, Message, Persona, Scene

log = logging.getLogger("appliance.chat")


async def rendered_for(conversation: Conversation, chosen: CharacterVersion) -> Rendered:
    """The character's template for this conversation: the same in each of its turns while persona and
    note stay. Raises TemplateError."""
    scene, frozen = conversation.scene, beginning_of(conversation)
    user, inputs = user_of(scene), scene_values(scene)
    # In a thread: a template may take its time, and other chats shall not wait for it.
    try:
        return await asyncio.to_thread(chosen.render, frozen, user=user, inputs=inputs)
    except (TemplateError, InvalidCard) as error:
        # Where in which file is the operator's affair.
        name = chosen.character.id
        log.error("template_failed", extra={"character": name, "reason": error.message})
        raise TemplateError("the character's template cannot be rendered") from error


async def shared_greetings(
    conversation: Conversation, chosen: CharacterVersion, path: tuple[Message, ...]
) -> frozenset[str]:
    """The greetings that are the same for all, if the path begins with one."""
    if not path or path[0].role != "assistant":
        return frozenset()
    frozen = beginning_of(conversation)
    chars = 0 if chosen.card is None else len(chosen.card.text)
    greetings = await off_loop(chars, lambda: chosen.greetings(frozen))
    return frozenset(greeting.text for greeting in greetings if greeting.is_same_for_all)


def scene_values(scene: Scene) -> Mapping[str, Any]:
    """The template inputs `user`, `persona` and `note`: "" for what is not set, and for a note that is
    frozen into the history."""
    persona, note = scene.persona or Persona(), scene.note
    tail = "" if note is None or note.every is not None else note.text
    return {"user": persona.name, "persona": persona.text, "note": tail}


def user_of(scene: Scene) -> str:
    """What {{user}} stands for."""
    persona = scene.persona or Persona()
    return persona.name or DEFAULT_USER


def macros_of(conversation: Conversation, chosen: CharacterVersion) -> Macros:
    """What {{char}}, {{user}} and draws stand for in the lore of a conversation."""
    return chosen.macros(beginning_of(conversation), user=user_of(conversation.scene))
