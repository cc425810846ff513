"""The next prompt of a conversation, from the end of the one before: work for what is new alone.

What `fit` would build from the whole path, a `Tip` and the new message give in O(new text): the same
tokens, the same cut. Never: the first prompt of a conversation, or one that the cut moves in (`fit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.prompt.chat_format.chat_format import ChatFormat
from appliance.prompt.fit import Fitted, LeftOut
from appliance.prompt.messages import Prompt, PromptMessage
from appliance.prompt.truncate import Window
from appliance.tokens import TokenIds, count, head, tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """Where a prompt may go on: after the reply to the prompt before.

    `tokens` and `stretches` are those of prompt, reply, and of the format's closing ids the first
    `closed`. `window_tokens` is the size of prompt and reply by which the window is cut,
    `messages_dropped` and `left_out` what is cut already.
    """

    tokens: int
    stretches: tuple[tuple[bytes, int], ...]
    closed: int
    window_tokens: int
    messages_dropped: int
    left_out: tuple[LeftOut, ...] = ()


def tip_after(
    chat_format: ChatFormat, fitted: Fitted, reply: str, *, reply_tokens: int, end: int
) -> Tip | None:
    """The place after a reply of `reply_tokens` tokens, of which `end` tokens in all are known.

    None where a whole prompt might differ from going on: the format looks further than to the next
    message, or would write this reply in another way.
    """
    following = chat_format.following
    if following is None or not fitted.is_plain or not reply:
        return None
    if following.reply.trimmed(reply) != reply:
        return None
    closed = end - fitted.prompt.tokens - reply_tokens
    if not 0 <= closed <= count(chat_format.closing):
        return None
    return Tip(
        tokens=end,
        stretches=_extended(fitted.prompt.stretches, reply_tokens + closed),
        closed=closed,
        window_tokens=fitted.window_tokens + reply_tokens + chat_format.overhead["assistant"],
        messages_dropped=fitted.messages_dropped,
        left_out=fitted.left_out,
    )


def continued(
    chat_format: ChatFormat,
    tip: Tip,
    message: PromptMessage,
    window: Window,
    *,
    leads: Sequence[PromptMessage] = (),
) -> Fitted | None:
    """The prompt for a reply to `message`, a private one of a user; `leads` are private system texts
    right before it. All have their ids.

    None when it is not the plain continuation of what was: the window is full, the format trims a
    content, or another tenant owns the end of the tip.
    """
    following = chat_format.following
    assert following is not None
    said = (*leads, message)
    slots = chat_format.slots_after_reply([one.role for one in said])
    namespace, _ = tip.stretches[-1]
    if slots is None or not all(
        one.namespace == namespace and one.content and slot.trimmed(one.content) == one.content
        for one, slot in zip(said, slots, strict=True)
    ):
        return None
    before = [chat_format.ids(slot.before) for slot in slots]
    if head(before[0], tip.closed) != head(chat_format.closing, tip.closed):
        return None
    before[0] = tail(before[0], tip.closed)
    contents = [_ids_of(one) for one in said]
    header = chat_format.ids(following.after)
    pieces = [ids + content for ids, content in zip(before, contents, strict=True)]
    token_ids = b"".join(pieces) + header
    new = count(token_ids)
    opening = sum(
        count(content) + chat_format.overhead[one.role]
        for one, content in zip(said, contents, strict=True)
    )
    if not window.has_room_for(opening, held=tip.window_tokens):
        return None
    if tip.tokens + new >= window.limit:
        return None
    sizes = [count(piece) for piece in pieces] + ([count(header)] if header else [])
    return Fitted(
        prompt=Prompt(
            token_ids=token_ids,
            stretches=_extended(tip.stretches, new),
            messages=said,
            part_tokens=tuple(sizes),
            closing=chat_format.closing,
            known_tokens=tip.tokens,
        ),
        messages_dropped=tip.messages_dropped,
        left_out=tip.left_out,
        window_tokens=tip.window_tokens + opening,
        is_plain=True,
    )


def _ids_of(message: PromptMessage) -> TokenIds:
    assert message.token_ids is not None
    return message.token_ids


def _extended(
    stretches: tuple[tuple[bytes, int], ...], tokens: int
) -> tuple[tuple[bytes, int], ...]:
    """The stretches with `tokens` more under the last namespace."""
    namespace, known = stretches[-1]
    return (*stretches[:-1], (namespace, known + tokens))
