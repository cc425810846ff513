"""From a stored path to the messages of a prompt. Pure; never reads the ledger or encodes a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from appliance.prompt.characters import Character
from appliance.prompt.messages import PromptMessage, Role, Zone
from appliance.prompt.namespace import PUBLIC, tenant_namespace
from appliance.store.records import Message

AUTO_TITLE_WORDS_MAX = 8
AUTO_TITLE_CHARS_MAX = 60


def spoken(path: Sequence[Message]) -> tuple[Message, ...]:
    """The messages that say something: a reply stopped before its first word is not in prompts."""
    return tuple(message for message in path if message.role != "assistant" or message.text)


def prompt_messages(
    path: Sequence[Message], *, tenant: str, character: Character, tokenizer: str
) -> list[PromptMessage]:
    """The messages of a `spoken` path, root first.

    Stored ids are used when `tokenizer` (a fingerprint) made them. A greeting that is still the
    character's own is public.
    """
    namespace = tenant_namespace(tenant)
    result = []
    for index, message in enumerate(path):
        is_greeting = (
            message.parent_id is None
            and message.role == "assistant"
            and message.text == character.greeting
        )
        result.append(
            PromptMessage(
                name=f"message {index + 1}",
                role=cast(Role, message.role),
                zone=Zone.CHARACTER if is_greeting else Zone.HISTORY,
                content=message.text,
                namespace=PUBLIC if is_greeting else namespace,
                token_ids=message.token_ids if message.tokenizer == tokenizer else None,
            )
        )
    return result


def foreign(path: Sequence[Message], tokenizer: str) -> frozenset[str]:
    """The names in prompts of the messages of a path that another tokenizer wrote."""
    return frozenset(
        f"message {index + 1}"
        for index, message in enumerate(spoken(path))
        if message.token_ids is not None and message.tokenizer != tokenizer
    )


def title_of(text: str) -> str:
    """A conversation's title: the first words of its first message."""
    words = text.split()
    title = " ".join(words[:AUTO_TITLE_WORDS_MAX])
    if len(title) > AUTO_TITLE_CHARS_MAX:
        title = title[: AUTO_TITLE_CHARS_MAX - 1].rstrip()
    return title + "…" if len(title) < len(" ".join(words)) else title
