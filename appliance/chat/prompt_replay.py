"""Recorded conversations run through two versions of a character: tokens, cuts and predicted prefix hits.

Builds the prompts that both versions would have given, turn after turn, as a planner builds them. Never:
generates, stores, or shows a message's text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from appliance.chat.history import spoken
from appliance.chat.left_behind import left_behind
from appliance.chat.other_version import OtherVersion, same_character
from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.stored_paths import StoredPaths
from appliance.errors import ContextLengthExceeded, TemplateError
from appliance.prompt.bundle import Bundle
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.prompt.fit import LeftOut
from appliance.store.records import Conversation, Message
from appliance.tokens import common

CONVERSATIONS_MAX = 1000
TURNS_MAX = 200
"""Of a longer conversation the newest turns are replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Turns under one version, added up.

    `tokens` are those of prompts, `hit_tokens` of them would be found in a cache that forgets nothing;
    `cuts` is how often the front of a history was cut, `refused` how many turns did not fit at all,
    `failed` of how many no prompt can be made.
    """

    turns: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    cuts: int = 0
    refused: int = 0
    failed: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            turns=self.turns + other.turns,
            tokens=self.tokens + other.tokens,
            hit_tokens=self.hit_tokens + other.hit_tokens,
            cuts=self.cuts + other.cuts,
            refused=self.refused + other.refused,
            failed=self.failed + other.failed,
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
    paths: StoredPaths,
    builder: PromptBuilder,
    before: Bundle,
    after: Bundle,
    *,
    conversations: int,
) -> Replay:
    """Run the `conversations` of this character that changed last through two bundles.

    Raises InvalidBundle and TemplateError for one that makes no prompt, InvalidRequest for two
    characters, EngineUnavailable while the context's size is unknown, StorageUnavailable.
    """
    same_character(before, after)
    versions = await asyncio.gather(
        *(asyncio.to_thread(CharacterVersion.of, bundle) for bundle in (before, after))
    )
    old, new = (OtherVersion.of(version, builder) for version in versions)
    found = await paths.ledger.newest_of_character(
        before.name, limit=conversations, default=DEFAULT_CHARACTER
    )
    replayed = []
    for conversation in found:
        assert conversation.head_id is not None
        key = (conversation.tenant, conversation.conversation_id, conversation.head_id)
        path = spoken(await paths.ledger.path(*key))
        replayed.append(
            Replayed(
                conversation_id=conversation.conversation_id,
                before=await _tally(old, conversation, path),
                after=await _tally(new, conversation, path),
            )
        )
    return Replay(
        name=before.name,
        versions=(old.version.version, new.version.version),
        conversations=tuple(replayed),
        before=sum((item.before for item in replayed), Tally()),
        after=sum((item.after for item in replayed), Tally()),
    )


async def _tally(
    under: OtherVersion, conversation: Conversation, recorded: tuple[Message, ...]
) -> Tally:
    """A conversation under one version: each message is heard by its lore, and stands from then on behind
    what that called up. What is before the turns that are replayed stays as it was stored."""
    hearing, held = under.hearing, under.holding(conversation)
    keeper = await under.builder.keeper(held, recorded)
    asked = [index for index, message in enumerate(recorded) if message.role == "user"][-TURNS_MAX:]
    path = list(recorded)
    total, known = Tally(), b""
    kept: int | None = None
    cut: tuple[int, tuple[LeftOut, ...]] = (0, ())
    for index in asked:
        before = keeper.recalled(path[:index], kept)
        heard = await hearing.hear(held, keeper, before, path[index].text)
        try:
            made = await hearing.answerable(held, path[:index], keeper, before, heard)
        except (ContextLengthExceeded, TemplateError) as error:
            path[index] = replace(path[index], lore=heard.user.lore)
            total += Tally(failed=1) if isinstance(error, TemplateError) else Tally(refused=1)
            continue
        path[index] = replace(path[index], lore=made.heard.user.lore)
        prompt, kept = made.fitted.prompt, made.fitted.messages_dropped
        total += Tally(
            turns=1,
            tokens=prompt.tokens,
            # At least the last token is always computed.
            hit_tokens=min(common(known, prompt.token_ids), prompt.tokens - 1),
            cuts=int((kept, made.fitted.left_out) != cut),
        )
        cut = (kept, made.fitted.left_out)
        reply = path[index + 1] if index + 1 < len(path) else None
        if reply is not None and reply.role != "assistant":
            reply = None
        known = left_behind(prompt, reply, under.builder.model.tokenizer).token_ids
    return total
