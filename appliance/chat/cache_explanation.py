"""What is cached of a conversation, in the words of prompts: parts, roles, causes. Pure; asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from appliance.chat.reply import REPLACEMENT
from appliance.prompt.messages import ROLES, PromptMessage, Role, Zone
from appliance.store.records import Conversation, Message
from appliance.tokens import TokenIds, count
from appliance.wire.frames import Explained


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTokens:
    """Of the tokens of one role, how many are cached."""

    tokens: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where the cache stops, and why. Texts are the tokens around the place; `cached` is what stands
    there instead, both None where nothing of the tenant's own does."""

    position: int
    part: str
    role: Role
    cause: str
    before: str | None
    asked: str | None
    cached: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheExplanation:
    """What is cached of the prompt and reply that a conversation shows, if it was sent again now.

    Pages by tier; those of host and disk follow the device's. `last_prompt_tokens` and
    `last_hit_tokens`: as the last turn found it. `difference` is None when all of it is cached.
    """

    tenant: str
    conversation_id: UUID
    tokens: int
    cached_tokens: int
    page_size: int
    device_pages: int
    host_pages: int
    disk_pages: int
    missing_pages: int
    by_role: dict[Role, RoleTokens]
    last_prompt_tokens: int | None
    last_hit_tokens: int | None
    difference: FirstDifference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of the path: a message, the header of a reply, a reply."""

    name: str
    role: Role
    tokens: int
    message: PromptMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftPath:
    """All that a conversation's shown turn left behind; `foreign` are the names of messages that another
    tokenizer wrote."""

    conversation: Conversation
    token_ids: TokenIds
    stretches: list[tuple[bytes, int]]
    parts: list[Part]
    reply: Message | None
    foreign: frozenset[str]


def explanation(
    path: LeftPath, found: Explained, *, page_size: int, decode: Callable[[TokenIds], str]
) -> CacheExplanation:
    """What the engine found of a path, in the path's own parts; `decode` gives the text of tokens."""
    total = count(path.token_ids)
    on_device = found.hit_tokens - found.host_tokens - found.disk_tokens
    cached_pages = -(-found.hit_tokens // page_size)
    return CacheExplanation(
        tenant=path.conversation.tenant,
        conversation_id=path.conversation.conversation_id,
        tokens=total,
        cached_tokens=found.hit_tokens,
        page_size=page_size,
        device_pages=-(-on_device // page_size),
        host_pages=found.host_tokens // page_size,
        disk_pages=found.disk_tokens // page_size,
        missing_pages=-(-total // page_size) - cached_pages,
        by_role=_by_role(path.parts, found.hit_tokens),
        last_prompt_tokens=None if path.reply is None else path.reply.prompt_tokens,
        last_hit_tokens=None if path.reply is None else path.reply.prefix_hit_tokens,
        difference=None if found.hit_tokens >= total else _difference(path, found, decode),
    )


def _difference(
    path: LeftPath, found: Explained, decode: Callable[[TokenIds], str]
) -> FirstDifference:
    def text(token_ids: TokenIds | None) -> str | None:
        return None if token_ids is None else decode(token_ids)

    part = _part_at(path.parts, found.hit_tokens)
    return FirstDifference(
        position=found.hit_tokens,
        part=part.name,
        role=part.role,
        cause=_cause(found.cause, path, part),
        before=text(found.before),
        asked=text(found.asked),
        cached=text(found.cached),
    )


def _part_at(parts: list[Part], position: int) -> Part:
    end = 0
    for part in parts:
        end += part.tokens
        if position < end:
            return part
    return parts[-1]


def _cause(cause: str, path: LeftPath, part: Part) -> str:
    """The engine's cause in the words of prompts: what diverges in which part says who changed it."""
    if cause != "diverged":
        return cause
    if part.message is not None and part.message.zone is not Zone.HISTORY:
        return "template changed"
    # A strict format has several messages as one, which is called by all of their names.
    if path.foreign.intersection(part.name.split(" + ")):
        return "tokenizer changed"
    said = path.reply if part.message is None else part.message
    text = "" if said is None else said.content if isinstance(said, PromptMessage) else said.text
    if part.role == "assistant" and REPLACEMENT in text:
        return "broken character"
    return "edited"


def _by_role(parts: list[Part], hit_tokens: int) -> dict[Role, RoleTokens]:
    totals, cached = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    start = 0
    for part in parts:
        totals[part.role] += part.tokens
        cached[part.role] += min(max(hit_tokens - start, 0), part.tokens)
        start += part.tokens
    return {role: RoleTokens(tokens=totals[role], cached=cached[role]) for role in ROLES}
