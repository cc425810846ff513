"""Contents as token ids, with a refusal that names the field. Never: a chat format's own text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from appliance._core import ContentRefused, Tokenizer
from appliance.errors import InvalidRequest
from appliance.prompt.messages import PromptMessage
from appliance.tokens import TokenIds

Columns: TypeAlias = tuple[list[str], list[str], list[TokenIds | None], list[bytes]]
"""Messages as `_core.ChatPieces` takes them: roles, contents, stored ids, namespaces."""


def columns(messages: Sequence[PromptMessage]) -> Columns:
    """The messages as parallel lists: one call for all of them, and no work in between."""
    return (
        [message.role for message in messages],
        [message.content for message in messages],
        [message.token_ids for message in messages],
        [message.namespace for message in messages],
    )


def encode_content(tokenizer: Tokenizer, text: str, namespace: bytes, *, param: str) -> TokenIds:
    """Ids of one text; raises InvalidRequest when it is too long, or no ids but a control token's
    say it."""
    try:
        return tokenizer.encode(text, namespace)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def with_ids(tokenizer: Tokenizer, message: PromptMessage) -> PromptMessage:
    """The message with the ids of its content; raises as `encode_content`."""
    if message.token_ids is not None:
        return message
    ids = encode_content(
        tokenizer, message.content, message.namespace, param=f"{message.name}.content"
    )
    return replace(message, token_ids=ids)


@contextmanager
def naming_the_refused(messages: Sequence[PromptMessage]) -> Iterator[None]:
    """Within it, a content of `messages` that cannot be encoded is an InvalidRequest with its name."""
    try:
        yield
    except ContentRefused as error:
        index, reason = error.args
        raise _refused(messages[index], reason) from error
    except UnicodeEncodeError as error:  # a lone surrogate: no content at all
        message = next(m for m in messages if m.content == error.object)
        raise _refused(message, str(error)) from error


def _refused(message: PromptMessage, reason: str) -> InvalidRequest:
    param = f"{message.name}.content"
    return InvalidRequest(f"{param}: {reason}", param=param)
