"""A finished reply: its text, the ids of exactly that text, and what it cost.

Never: how it was generated, or where it is stored.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from appliance._core import Tokenizer
from appliance.chat.events import Usage
from appliance.tokens import TokenIds, unpack
from appliance.wire.frames import FinishReason, Node

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What was delivered of a reply, computed once when it has ended.

    `token_ids` are ids of exactly `text`, None where the vocabulary cannot write it. `node` is where
    the engine has prompt, reply and closing tokens, None when it has other tokens than these.
    `ttft_ms` and `reply_ms`: from the request to the first text, None without any, and to the end.
    """

    text: str
    token_ids: TokenIds | None
    finish_reason: FinishReason
    usage: Usage
    node: Node | None
    ttft_ms: int | None
    reply_ms: int


def ids_of(tokenizer: Tokenizer, text: str, generated: TokenIds) -> TokenIds | None:
    """`generated` where the ids say exactly `text` and hold no control token, else its encoding.

    A control token adds no text: a reply that holds one must not come back in a later prompt. Bytes
    that are no character show as U+FFFD, which is what was seen: the bytes must not go on after it.
    """
    if (
        REPLACEMENT not in text
        and all(tokenizer.token_bytes(token_id) for token_id in unpack(generated))
        and tokenizer.decode(generated) == text
    ):
        return generated
    return encoding_of(tokenizer, text)


def encoding_of(tokenizer: Tokenizer, text: str) -> TokenIds | None:
    """Ids of a text that a model wrote; None where the vocabulary cannot write it."""
    try:
        return tokenizer.encode(text)
    except ValueError:
        return None


def remember(tokenizer: Tokenizer, namespace: bytes, text: str, token_ids: TokenIds | None) -> None:
    """Let this text, sent back by a client of the same namespace, become the ids generated.

    Ids that do not decode to the text, such as the encoding of a normalized one, are left out, and so
    is a text with U+FFFD, whose bytes it does not tell.
    """
    if text and token_ids is not None and REPLACEMENT not in text:
        with suppress(ValueError):
            tokenizer.remember(namespace, text, token_ids)
