"""What is cached of a conversation, in the words of prompts: parts, roles, causes. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from appliance.chat.history import foreign
from appliance.chat.left_behind import REPLY, LeftBehind
from appliance.chat.part_shares import (
    PartShare,
    PrefixBreak,
    broken_at,
    message_ids,
    part_at,
    shares,
    source_of,
)
from appliance.chat.prefix_causes import Cause
from appliance.chat.reply import REPLACEMENT
from appliance.prompt.messages import ROLES, Part, Role
from appliance.prompt.sources import SourceKind
from appliance.store.records import Conversation, Message
from appliance.tokens import TokenIds, count
from appliance.wire.frames import Explained

_ENGINE_CAUSES = {"hit": "cached", "truncated": "cut"}
"""The engine's causes that have another name here; `diverged` is looked into."""

_OF_THE_SCENE = {
    SourceKind.PERSONA: "persona",
    SourceKind.NOTE: "note",
    SourceKind.PINNED: "pinned text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTokens:
    """Of the tokens of one role, how many are cached."""

    tokens: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """What is cached of the prompt and reply that a conversation shows, if it was sent again now.

    Pages by tier; those of host and disk follow the device's. `last_prompt_tokens` and
    `last_hit_tokens`: as the last turn found it. `first_difference` is where the cache stops, None when
    all of it is cached.
    """

    tenant: str
    conversation_id: UUID
    tokens: int
    cached_tokens: int
    parts: tuple[PartShare, ...]
    page_size: int
    device_pages: int
    host_pages: int
    disk_pages: int
    missing_pages: int
    by_role: dict[Role, RoleTokens]
    last_prompt_tokens: int | None
    last_hit_tokens: int | None
    cause: Cause
    first_difference: PrefixBreak | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPath:
    """What a conversation shows, and what its turn leaves; `tokenizer` is the model's own."""

    conversation: Conversation
    path: tuple[Message, ...]
    left: LeftBehind
    tokenizer: str


def explanation(
    shown: ShownPath, found: Explained, *, page_size: int, decode: Callable[[TokenIds], str]
) -> CacheExplanation:
    """What the engine found of a path, in the path's own parts; `decode` gives the text of tokens."""
    left, parts = shown.left, shown.left.parts
    total, hit = count(left.token_ids), min(found.hit_tokens, count(left.token_ids))
    on_device = found.hit_tokens - found.host_tokens - found.disk_tokens
    cached_pages = -(-found.hit_tokens // page_size)
    is_whole = hit == total

    def text(token_ids: TokenIds | None) -> str | None:
        return None if token_ids is None else decode(token_ids)

    difference = None
    if not is_whole:
        before, asked, instead = (text(one) for one in (found.before, found.asked, found.cached))
        difference = broken_at(parts, hit, before=before, asked=asked, found=instead)
    return CacheExplanation(
        tenant=shown.conversation.tenant,
        conversation_id=shown.conversation.conversation_id,
        tokens=total,
        cached_tokens=hit,
        parts=shares(parts, hit),
        page_size=page_size,
        device_pages=-(-on_device // page_size),
        host_pages=found.host_tokens // page_size,
        disk_pages=found.disk_tokens // page_size,
        missing_pages=-(-total // page_size) - cached_pages,
        by_role=_by_role(parts, hit),
        last_prompt_tokens=None if left.reply is None else left.reply.prompt_tokens,
        last_hit_tokens=None if left.reply is None else left.reply.prefix_hit_tokens,
        cause=Cause(name="cached") if is_whole else _cause(found.cause, shown, part_at(parts, hit)),
        first_difference=difference,
    )


def _cause(cause: str, shown: ShownPath, part: Part) -> Cause:
    """The engine's cause in the words of prompts: what diverges in which part says who changed it."""
    if cause != "diverged":
        return Cause(name=_ENGINE_CAUSES.get(cause, cause))
    ids = message_ids(part)
    said = [message for message in shown.path if str(message.message_id) in ids]
    if not said:
        return _around(shown, part)
    if foreign(said, shown.tokenizer):
        return Cause(name="tokenizer", detail=part.name)
    if part.role == "assistant" and any(REPLACEMENT in message.text for message in said):
        return Cause(name="broken character", detail=part.name)
    is_users = said[-1].role == "user"
    return Cause(name="edited message" if is_users else "other reply", detail=part.name)


def _around(shown: ShownPath, part: Part) -> Cause:
    """What stands around the messages: the last turn says whether it was made with another version or
    scene. Else what is cached is of another conversation that begins alike."""
    reply, conversation = shown.left.reply, shown.conversation
    if part.name == REPLY or reply is None:
        return Cause(name="cold")
    if reply.prompt_version not in (None, conversation.prompt_version):
        return Cause(name="character version", detail=part.name)
    if reply.scene_digest not in (None, conversation.scene.digest):
        return Cause(name=_OF_THE_SCENE.get(source_of(part), "scene"), detail=part.name)
    return Cause(name="cold")


def _by_role(parts: Sequence[Part], hit_tokens: int) -> dict[Role, RoleTokens]:
    totals, cached = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    for share in shares(parts, hit_tokens):
        totals[share.role] += share.tokens
        cached[share.role] += share.cached or 0
    return {role: RoleTokens(tokens=totals[role], cached=cached[role]) for role in ROLES}
