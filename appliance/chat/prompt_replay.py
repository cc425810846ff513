"""Recorded conversations run through two versions of a character: tokens, cuts and predicted prefix hits.

Builds the prompts that both versions would have given, turn after turn, as a planner builds them. Never:
generates, stores, or shows a message's text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from appliance.chat.catalog import Catalog
from appliance.chat.history import spoken
from appliance.chat.plan import Planner
from appliance.chat.prompt_diff import same_character
from appliance.errors import ContextLengthExceeded
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import DEFAULT_CHARACTER, Characters, CharacterVersion
from appliance.store.records import Conversation, Message
from appliance.tokens import TokenIds

CONVERSATIONS_MAX = 1000
TURNS_MAX = 200
"""Of a longer conversation the newest turns are replayed."""

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Turns under one version, added up.

    `tokens` are those of prompts, `hit_tokens` of them would be found in a cache that forgets nothing;
    `cuts` is how often the front of a history was cut, `refused` how many turns did not fit at all.
    """

    turns: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    cuts: int = 0
    refused: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            turns=self.turns + other.turns,
            tokens=self.tokens + other.tokens,
            hit_tokens=self.hit_tokens + other.hit_tokens,
            cuts=self.cuts + other.cuts,
            refused=self.refused + other.refused,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One conversation under both versions."""

    conversation_id: UUID
    before: Tally
    after: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Conversations under two versions, and all of them together."""

    name: str
    versions: tuple[str, str]
    conversations: tuple[Replayed, ...]
    before: Tally
    after: Tally


async def prompt_replay(
    planner: Planner, before: Bundle, after: Bundle, *, conversations: int
) -> Replay:
    """Run the `conversations` of this character that changed last through two bundles.

    Raises InvalidBundle and TemplateError for one that makes no prompt, InvalidRequest for two
    characters, EngineUnavailable while the context's size is unknown, StorageUnavailable.
    """
    same_character(before, after)
    old, new = await asyncio.gather(
        *(asyncio.to_thread(CharacterVersion.of, bundle) for bundle in (before, after))
    )
    found = await planner.catalog.registry.newest_conversations(
        before.name, limit=conversations, default=DEFAULT_CHARACTER
    )
    replayed = []
    for conversation in found:
        assert conversation.head_id is not None
        key = (conversation.tenant, conversation.conversation_id, conversation.head_id)
        path = spoken(await planner.ledger.path(*key))
        replayed.append(
            Replayed(
                conversation_id=conversation.conversation_id,
                before=await _tally(planner, old, conversation, path),
                after=await _tally(planner, new, conversation, path),
            )
        )
    return Replay(
        name=before.name,
        versions=(old.version, new.version),
        conversations=tuple(replayed),
        before=sum((item.before for item in replayed), Tally()),
        after=sum((item.after for item in replayed), Tally()),
    )


async def _tally(
    planner: Planner,
    version: CharacterVersion,
    conversation: Conversation,
    path: tuple[Message, ...],
) -> Tally:
    own = replace(
        planner, catalog=Catalog(planner.catalog.registry, current=Characters.of((version,)))
    )
    held = replace(conversation, prompt_version=version.version)
    asked = [index for index, message in enumerate(path) if message.role == "user"]
    total, known = Tally(), b""
    cut: tuple[int, tuple[str, ...]] = (0, ())
    for index in asked[-TURNS_MAX:]:
        try:
            fitted = await own.fitted(held, path[: index + 1])
        except ContextLengthExceeded:
            total += Tally(refused=1)
            continue
        prompt = fitted.prompt
        total += Tally(
            turns=1,
            tokens=prompt.tokens,
            # At least the last token is always computed.
            hit_tokens=min(common_tokens(known, prompt.token_ids), prompt.tokens - 1),
            cuts=int((fitted.dropped, fitted.left_out) != cut),
        )
        cut = (fitted.dropped, fitted.left_out)
        known = prompt.token_ids + _reply_ids(path, index, planner) + prompt.closing
    return total


def _reply_ids(path: tuple[Message, ...], index: int, planner: Planner) -> TokenIds:
    """The ids of the reply to a message, as the next prompt has them."""
    if index + 1 == len(path) or path[index + 1].role != "assistant":
        return b""
    reply = path[index + 1]
    tokenizer = planner.model.tokenizer
    if reply.token_ids is not None and reply.tokenizer == tokenizer.fingerprint:
        return reply.token_ids
    return tokenizer.encode(reply.text)


def common_tokens(first: TokenIds, second: TokenIds) -> int:
    """How many tokens two prompts begin with alike."""
    low, high = 0, min(len(first), len(second)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * TOKEN_BYTES
        # What is before `low` is alike.
        if first[low * TOKEN_BYTES : end] == second[low * TOKEN_BYTES : end]:
            low = middle
        else:
            high = middle - 1
    return low
