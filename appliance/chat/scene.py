"""What stands around the history of one conversation: its character's texts, and what its user has set.

Never: the history itself, or which version of a character it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.chat.history import beginning_of
from appliance.chat.prompting import off_loop
from appliance.errors import InvalidCard, TemplateError
from appliance.prompt.cards.macros import DEFAULT_USER, Macros
from appliance.prompt.cast import Cast
from appliance.prompt.templates.parts import Rendered
from appliance.store.records import Conversation, Message, Persona, Scene
from appliance.store.text import storable

log = logging.getLogger("appliance.chat")


async def rendered_for(
    conversation: Conversation, cast: Cast, *, speaker: str | None = None
) -> Rendered:
    """The template of a conversation: the same in each of its turns while the scene stays, but for what
    stands behind the history for a reply of `speaker`. Raises TemplateError."""
    scene, beginning = conversation.scene, beginning_of(conversation)
    user, inputs = user_of(scene), scene_values(scene)

    # In a thread: a template may take its time, and other chats shall not wait for it.
    try:
        return await asyncio.to_thread(
            cast.render, beginning, user=user, inputs=inputs, speaker=speaker
        )
    except (TemplateError, InvalidCard) as error:
        # Where in which file is the operator's affair.
        name = conversation.character
        log.error("template_failed", extra={"character": name, "reason": error.message})
        raise TemplateError("the character's template cannot be rendered") from error


def reason_of(error: TemplateError) -> str:
    """What `rendered_for` keeps from users: file, line, part and variable, for an operator."""
    cause = error.__cause__
    return cause.message if isinstance(cause, TemplateError | InvalidCard) else error.message


async def shared_greetings(
    conversation: Conversation, cast: Cast, path: Sequence[Message]
) -> frozenset[str]:
    """The greetings that are the same for all, if the path begins with one."""
    if not path or path[0].role != "assistant":
        return frozenset()
    beginning = beginning_of(conversation)
    openings = await off_loop(cast.text_chars, lambda: cast.openings(beginning))
    return frozenset(greeting.text for _, greeting in openings if greeting.is_same_for_all)


async def greeting_index(
    conversation: Conversation, cast: Cast, path: Sequence[Message]
) -> int | None:
    """Which of its greetings a path begins with, from 0; None where it begins with none of them."""
    if not path or path[0].role != "assistant":
        return None
    beginning, user = beginning_of(conversation), user_of(conversation.scene)

    def texts() -> list[str]:
        # Written when the conversation was opened, perhaps before the user had this name.
        now, then = cast.openings(beginning, user=user), cast.openings(beginning)
        return [storable(greeting.text) for _, greeting in (*now, *then)]

    found = await off_loop(cast.text_chars, texts)
    opening = path[0].text
    return found.index(opening) % (len(found) // 2) if opening in found else None


def scene_values(scene: Scene) -> Mapping[str, Any]:
    """The template inputs `user`, `persona`, `note` and `pinned`: "" for what is not set, and for a note
    that is frozen into the history."""
    persona, note = scene.persona or Persona(), scene.note
    tail = "" if note is None or note.every is not None else note.text
    return {
        "user": persona.name,
        "persona": persona.text,
        "note": tail,
        "pinned": scene.pinned,
    }


def user_of(scene: Scene) -> str:
    """What {{user}} stands for."""
    persona = scene.persona or Persona()
    return persona.name or DEFAULT_USER


def macros_of(conversation: Conversation, cast: Cast) -> Macros:
    """What {{char}}, {{user}} and draws stand for in the lore of a conversation."""
    return cast.macros(beginning_of(conversation), user=user_of(conversation.scene))
