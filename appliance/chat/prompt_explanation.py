"""What a reply's prompt was made of, what was cut, and what broke the prefix. Pure; asks nobody.

Owns the causes by name. Never: what is cached now (`cache_explanation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from appliance.chat.fronts import Front, change
from appliance.chat.history import spoken
from appliance.chat.reply import REPLACEMENT
from appliance.prompt.fit import Fitted
from appliance.prompt.messages import Role, Zone
from appliance.prompt.truncate import Window
from appliance.store.records import Message
from appliance.tokens import TokenIds, count, unpack

CAUSES = {
    "first turn": "there was no turn before it: what is cached is shared with other conversations",
    "goes on": "nothing broke it: the prompt begins with all of the turn before",
    "cut": "the window was full: what follows the cut stands elsewhere",
    "edited message": "another message stands there: an edit, or a branch from an earlier place",
    "other reply": "another reply stands there: a swipe",
    "volatile text": "the template writes text after the newest message, in every prompt anew",
    "character version": "the character's files were changed",
    "persona": "the persona was changed",
    "template variable": "a variable of the template has another value",
    "tokenizer": "the model has another tokenizer",
    "broken character": "the reply before ended inside a character, so its last tokens differ",
    "chat format": "the model's chat format writes the turn before in another way",
    "changed since": "the prompt would be made otherwise today: character, limits or model changed",
    "evicted": "it was as the turn before left it, but no longer cached",
}
"""Why a prompt was not the one before it and more: by name, in words."""

_SHOWN_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A stored reply, its prompt computed again, and what that was made of.

    `path` ends with the reply. `front` is that of today; `recorded` that of the turn itself, where it is
    known. `foreign` are the names of messages that another tokenizer wrote.
    """

    path: tuple[Message, ...]
    fitted: Fitted
    front: Front
    recorded: Front | None
    foreign: frozenset[str]
    window: Window

    @property
    def reply(self) -> Message:
        """The reply."""
        return self.path[-1]

    @property
    def is_as_sent(self) -> bool:
        """Whether the prompt is the one that was sent, as far as its size tells."""
        return self.fitted.prompt.tokens == self.reply.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPart:
    """One part of a prompt. `cached` of its tokens were found, None where that is not known."""

    name: str
    role: Role
    zone: Zone
    tokens: int
    cached: int | None
    message_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBreak:
    """Where a prompt leaves that of the turn before: position in tokens, part, texts around it."""

    position: int
    part: str
    zone: Zone
    before: str
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExplanation:
    """A reply's prompt. Tokens; `prompt_tokens` and `cached_tokens` as the turn itself counted them.

    `context_begins_at` is the first message of the history in it, when messages were cut before it.
    `before_id` is the reply stored before this one, `shared_tokens` how much of the prompt is as that
    turn left it. `cause` is one of CAUSES, `detail` names what changed.
    """

    conversation_id: UUID
    message_id: UUID
    is_as_sent: bool
    tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    parts: tuple[PromptPart, ...]
    limit: int
    reserve: int
    step: int
    window_tokens: int
    messages_dropped: int
    parts_dropped: tuple[str, ...]
    context_begins_at: UUID | None
    before_id: UUID | None
    shared_tokens: int
    cause: str
    detail: str
    first_difference: PrefixBreak | None


def explained(
    conversation_id: UUID,
    now: Again,
    before: Again | None,
    *,
    closing: TokenIds,
    decode: Callable[[TokenIds], str],
) -> PromptExplanation:
    """The explanation of a reply; `before` is the turn that was stored before it."""
    prompt, reply = now.fitted.prompt, now.reply
    asked = prompt.token_ids
    left = b"" if before is None else _left_by(before, closing)
    shared = _shared(left, asked)
    cause, detail = _cause(now, before, shared, left)
    kept = spoken(now.path[:-1])
    dropped = _first_kept(now)
    return PromptExplanation(
        conversation_id=conversation_id,
        message_id=reply.message_id,
        is_as_sent=now.is_as_sent,
        tokens=prompt.tokens,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.prefix_hit_tokens,
        parts=_parts(now),
        limit=now.window.limit,
        reserve=now.window.reserve,
        step=now.window.step,
        window_tokens=now.fitted.window_tokens,
        messages_dropped=dropped,
        parts_dropped=now.fitted.left_out,
        context_begins_at=kept[dropped].message_id if 0 < dropped < len(kept) else None,
        before_id=None if before is None else before.reply.message_id,
        shared_tokens=shared,
        cause=cause,
        detail=detail,
        first_difference=_difference(now, shared, left, decode),
    )


def _left_by(before: Again, closing: TokenIds) -> TokenIds:
    """The tokens that a turn left behind."""
    spoken_ids = before.reply.token_ids or b""
    return before.fitted.prompt.token_ids + spoken_ids + (closing if spoken_ids else b"")


def _shared(left: TokenIds, asked: TokenIds) -> int:
    same = 0
    for one, other in zip(unpack(left), unpack(asked), strict=False):
        if one != other:
            break
        same += 1
    return same


def _parts(now: Again) -> tuple[PromptPart, ...]:
    by_name = _messages_by_name(now.path[:-1])
    hit = now.reply.prefix_hit_tokens if now.is_as_sent else None
    found, start = [], 0
    for part in now.fitted.prompt.parts:
        message = by_name.get(part.name)
        found.append(
            PromptPart(
                name=part.name,
                role=part.role,
                zone=part.zone,
                tokens=part.tokens,
                cached=None if hit is None else min(max(hit - start, 0), part.tokens),
                message_id=None if message is None else message.message_id,
            )
        )
        start += part.tokens
    return tuple(found)


def _first_kept(now: Again) -> int:
    """The index of the first message of the path that is in the prompt: `Fitted.dropped` counts the lore
    before messages too."""
    names = list(_messages_by_name(now.path[:-1]))
    found = (name for part in now.fitted.prompt.parts for name in part.name.split(" + "))
    return next((names.index(name) for name in found if name in names), now.fitted.dropped)


def _messages_by_name(path: Sequence[Message]) -> dict[str, Message]:
    return {f"message {index + 1}": message for index, message in enumerate(spoken(path))}


def _difference(
    now: Again, shared: int, left: TokenIds, decode: Callable[[TokenIds], str]
) -> PrefixBreak | None:
    asked = now.fitted.prompt.token_ids
    if shared >= count(left) or shared >= count(asked):
        return None
    part = _part_at(now.fitted, shared)
    around = 4 * max(shared - _SHOWN_TOKENS, 0), 4 * (shared + _SHOWN_TOKENS)
    return PrefixBreak(
        position=shared,
        part=part.name,
        zone=part.zone,
        before=decode(left[around[0] : around[1]]),
        asked=decode(asked[around[0] : around[1]]),
    )


def _part_at(fitted: Fitted, position: int) -> PromptPart:
    end = 0
    parts = fitted.prompt.parts
    for part in parts:
        end += part.tokens
        if position < end:
            break
    return PromptPart(
        name=part.name,
        role=part.role,
        zone=part.zone,
        tokens=part.tokens,
        cached=None,
        message_id=None,
    )


def _cause(now: Again, before: Again | None, shared: int, left: TokenIds) -> tuple[str, str]:
    """(cause, detail): the first of the causes that the two prompts show."""
    if before is None:
        return "first turn", ""
    asked = now.fitted.prompt.tokens
    changed = _changed(now, before)
    if changed is not None:
        return changed
    if not (now.is_as_sent and before.is_as_sent):
        return "changed since", ""
    hit = now.reply.prefix_hit_tokens or 0
    # Of a prompt that is cached whole, the last token is computed.
    if hit < min(shared, asked - 1):
        return "evicted", f"{shared - hit} tokens"
    if shared >= count(left) or shared >= asked:
        return "goes on", ""
    return _difference_cause(now, before, shared)


def _changed(now: Again, before: Again) -> tuple[str, str] | None:
    """What the records of the two turns' fronts tell."""
    if now.recorded is None or before.recorded is None:
        return None
    found = change(before.recorded, now.recorded)
    if found is None:
        return None
    return found.cause, ", ".join(text for text in (found.part, found.detail) if text)


def _difference_cause(now: Again, before: Again, shared: int) -> tuple[str, str]:
    part = _part_at(now.fitted, shared)
    if shared < before.fitted.prompt.tokens:
        other = _part_at(before.fitted, shared)
        if other.zone is Zone.VOLATILE and other.name != "reply header":
            return "volatile text", other.name
    if (now.fitted.dropped, now.fitted.left_out) != (before.fitted.dropped, before.fitted.left_out):
        return "cut", _cut_detail(now.fitted, before.fitted)
    if set(part.name.split(" + ")) & now.foreign:
        return "tokenizer", part.name
    # Where both prompts have the same cut, messages of one name stand in one place.
    mine = _messages_by_name(now.path).get(part.name)
    theirs = _messages_by_name(before.path).get(part.name)
    if mine is not None and theirs is not None and mine.message_id != theirs.message_id:
        return ("edited message" if mine.role == "user" else "other reply"), part.name
    if REPLACEMENT in before.reply.text:
        return "broken character", part.name
    return "chat format", part.name


def _cut_detail(now: Fitted, before: Fitted) -> str:
    moved = now.dropped - before.dropped
    said = (
        [f"{abs(moved)} messages {'more' if moved > 0 else 'fewer'} are left out"] if moved else []
    )
    gone = [name for name in now.left_out if name not in before.left_out]
    return ", ".join([*said, *(f"{name} is left out" for name in gone)])
