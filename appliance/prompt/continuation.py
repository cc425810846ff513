"""The next prompt of a conversation, from the end of the one before: work for what is new alone.

What `fit` would build from the whole path, a `Tip` and the new message give in O(new text): the same
tokens, the same cut. Never: the first prompt of a conversation, or one that the cut moves in (`fit`).
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.prompt.chat_format import ChatFormat
from appliance.prompt.fit import Fitted
from appliance.prompt.messages import Prompt, PromptMessage
from appliance.prompt.truncate import Window
from appliance.tokens import count, tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """Where a prompt may go on: after the reply to the prompt before.

    `tokens` and `stretches` are those of prompt, reply, and of the format's closing ids the first
    `closed`. `window_tokens` is the size of prompt and reply by which the window is cut, `dropped` how
    many messages of the front are cut already, `left_out` the names of the parts that are.
    """

    tokens: int
    stretches: tuple[tuple[bytes, int], ...]
    closed: int
    window_tokens: int
    dropped: int
    left_out: tuple[str, ...] = ()


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
        dropped=fitted.dropped,
        left_out=fitted.left_out,
    )


def continued(
    chat_format: ChatFormat, tip: Tip, message: PromptMessage, window: Window
) -> Fitted | None:
    """The prompt for a reply to `message`, a private one of a user with its ids.

    None when it is not the plain continuation of what was: the window is full, the format trims the
    message, or another tenant owns the end of the tip.
    """
    following = chat_format.following
    assert following is not None
    assert message.token_ids is not None
    namespace, _ = tip.stretches[-1]
    if namespace != message.namespace or not message.content:
        return None
    if following.message.trimmed(message.content) != message.content:
        return None
    opening = count(message.token_ids) + chat_format.overhead["user"]
    before = tail(chat_format.ids(following.message.before), tip.closed)
    header = chat_format.ids(following.after)
    token_ids = before + message.token_ids + header
    new = count(token_ids)
    if not window.has_room_for(opening, held=tip.window_tokens):
        return None
    if tip.tokens + new >= window.limit:
        return None
    said = count(before) + count(message.token_ids)
    sizes = (said, count(header)) if header else (said,)
    return Fitted(
        prompt=Prompt(
            token_ids=token_ids,
            stretches=_extended(tip.stretches, new),
            messages=(message,),
            part_tokens=sizes,
            closing=chat_format.closing,
            known_tokens=tip.tokens,
        ),
        dropped=tip.dropped,
        left_out=tip.left_out,
        window_tokens=tip.window_tokens + opening,
        is_plain=True,
    )


def _extended(
    stretches: tuple[tuple[bytes, int], ...], tokens: int
) -> tuple[tuple[bytes, int], ...]:
    """The stretches with `tokens` more under the last namespace."""
    namespace, known = stretches[-1]
    return (*stretches[:-1], (namespace, known + tokens))
