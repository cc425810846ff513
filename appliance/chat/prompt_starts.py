"""Where the prompts of a conversation begin: what must go from the cache so that nothing of it is found.

Never: drops anything (`cache_view`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from uuid import UUID

from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.stored_paths import StoredPaths
from appliance.prompt.messages import Prompt
from appliance.prompt.namespace import PUBLIC
from appliance.store.records import Message
from appliance.tokens import count


async def prompt_starts(
    paths: StoredPaths, builder: PromptBuilder, *, tenant: str, conversation_id: UUID
) -> tuple[Prompt, ...]:
    """Prompts of which one begins every prompt this conversation can have had: each with the
    operator's text and one message of a user, which is the last of its parts but the header."""
    conversation = await paths.conversation(tenant, conversation_id)
    messages = await paths.ledger.messages(tenant, conversation_id)
    left = await paths.ledger.left_prompt_versions(tenant, conversation_id)
    starts: list[Prompt] = []
    for version, path in product({conversation.prompt_version, *left}, _openings(messages)):
        held = replace(conversation, prompt_version=version)
        starts += await builder.forms(held, path)
    return tuple(starts)


def _openings(messages: tuple[Message, ...]) -> list[tuple[Message, ...]]:
    """Each message of a user, alone (a cut may have left it first) and behind a greeting."""
    by_id = {message.message_id: message for message in messages}
    found: list[tuple[Message, ...]] = []
    for message in messages:
        if message.role != "user":
            continue
        found.append((message,))
        greeting = by_id.get(message.parent_id) if message.parent_id is not None else None
        if greeting is not None and greeting.parent_id is None:
            found.append((greeting, message))
    return found


def first_private(prompt: Prompt) -> int:
    """The position of the first token that only the tenant may share, of its text and not of the
    format's text in front."""
    public = 0
    for namespace, tokens in prompt.stretches:
        if namespace != PUBLIC:
            break
        public += tokens
    # The first private text may be a persona or lore, before what the user said. Where its own tokens are
    # not known apart, as of a part of a template, it goes from its part's first token on.
    private = (at for at, said in enumerate(prompt.messages) if said.namespace != PUBLIC)
    own, at = public, next(private, None)
    if at is not None:
        own = sum(prompt.part_tokens[:at])
        if (ids := prompt.messages[at].token_ids) is not None:
            own = sum(prompt.part_tokens[: at + 1]) - count(ids)
    return max(public, min(own, prompt.tokens - 1))
