"""What a reply's prompt was made of, what was cut, and what broke the prefix. Pure; asks nobody.

Owns what is told. Never: which cause it is (`turn_causes`), or what is cached now (`cache_explanation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from appliance.chat.history import spoken
from appliance.chat.left_behind import LeftBehind, left_behind
from appliance.chat.part_shares import PartShare, PrefixBreak, broken_at, shares
from appliance.chat.prefix_causes import Cause
from appliance.chat.reply_prompts import ReplyPrompt
from appliance.chat.turn_causes import TurnBefore, cause_of
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.templates.reading import part_tokens
from appliance.tokens import TokenIds, common, count, head, tail

_SHOWN_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPart:
    """A part of the template that is not in the prompt: those with the higher number go first, those of
    one `block` together. `goes_before_history`: before any old turn does, not after all of them."""

    name: str
    truncation_priority: int
    block: str | None
    goes_before_history: bool
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExplanation:
    """A reply's prompt. Tokens; `prompt_tokens` and `cached_tokens` as the turn itself counted them.

    `history_priority` is the truncation priority of old turns: parts with a higher one go before them, of
    those with the same one the parts that stand before the history.
    `context_begins_at` is the first message of the history in it, when messages were cut before it.
    `before_id` is the reply stored before this one, `shared_tokens` how much of the prompt is as that
    turn left it.
    """

    conversation_id: UUID
    message_id: UUID
    prompt_version: str | None
    is_as_sent: bool
    tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    parts: tuple[PartShare, ...]
    limit: int
    reserve: int
    step: int
    window_tokens: int
    history_priority: int
    messages_dropped: int
    parts_dropped: tuple[CutPart, ...]
    context_begins_at: UUID | None
    before_id: UUID | None
    shared_tokens: int
    cause: Cause
    first_difference: PrefixBreak | None


def explained(now: ReplyPrompt, before: ReplyPrompt | None, model: ModelText) -> PromptExplanation:
    """The explanation of a reply; `before` is the turn that was stored before it."""
    built, reply = now.built, now.reply
    left = None
    if before is not None:
        left = left_behind(before.prompt, before.reply, model.tokenizer)
    shared = 0 if left is None else common(left.token_ids, now.prompt.token_ids)
    turn_before = None
    if before is not None and left is not None:
        turn_before = TurnBefore(prompt=before, left=left, shared_tokens=shared)
    dropped = built.fitted.messages_dropped
    kept = spoken(now.path[:-1])[dropped:]
    return PromptExplanation(
        conversation_id=now.conversation.conversation_id,
        message_id=reply.message_id,
        prompt_version=now.conversation.prompt_version,
        is_as_sent=now.is_as_sent,
        tokens=now.prompt.tokens,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.prefix_hit_tokens,
        parts=shares(now.prompt.parts, reply.prefix_hit_tokens if now.is_as_sent else None),
        limit=built.window.limit,
        reserve=built.window.reserve,
        step=built.window.step,
        window_tokens=built.fitted.window_tokens,
        history_priority=built.rendered.history_priority,
        messages_dropped=dropped,
        parts_dropped=_cut_parts(now, model),
        context_begins_at=kept[0].message_id if dropped and kept else None,
        before_id=None if before is None else before.reply.message_id,
        shared_tokens=shared,
        cause=cause_of(now, turn_before),
        first_difference=None if left is None else _difference(now, left, shared, model),
    )


def _cut_parts(now: ReplyPrompt, model: ModelText) -> tuple[CutPart, ...]:
    rendered = now.built.rendered
    texts = {part.name: part for part in rendered.parts}
    # As `_core.cut` has it. Parts of a block have one priority and stand on one side.
    early = {p.name for p in rendered.parts if p.truncation_priority > rendered.history_priority}
    early |= {p.name for p in rendered.before if p.truncation_priority == rendered.history_priority}
    return tuple(
        CutPart(
            name=out.name,
            truncation_priority=out.truncation_priority,
            block=out.block,
            goes_before_history=out.name in early,
            tokens=part_tokens(texts[out.name], model.chat_format),
        )
        for out in now.built.fitted.left_out
    )


def _difference(
    now: ReplyPrompt, left: LeftBehind, shared: int, model: ModelText
) -> PrefixBreak | None:
    asked = now.prompt.token_ids
    if shared >= count(left.token_ids) or shared >= count(asked):
        return None

    def shown(token_ids: TokenIds) -> str:
        return model.tokenizer.decode(head(tail(token_ids, shared), _SHOWN_TOKENS))

    start = max(shared - _SHOWN_TOKENS, 0)
    return broken_at(
        now.prompt.parts,
        shared,
        before=model.tokenizer.decode(head(tail(asked, start), shared - start)),
        asked=shown(asked),
        found=shown(left.token_ids),
    )
