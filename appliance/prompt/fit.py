"""The prompt of a stored conversation: system text, as much history as fits, the reply's header.

Owns the sizes that truncation decides on. Never: which path of the tree (`chat`), or the cut itself
(`truncate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance.errors import ContextLengthExceeded
from appliance.prompt import roles
from appliance.prompt.chat_format import ChatFormat, End
from appliance.prompt.contents import encode_contents
from appliance.prompt.messages import Prompt, PromptMessage, Role
from appliance.prompt.render import render
from appliance.prompt.truncate import Turn, Window, first_kept
from appliance.tokens import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt, and how many messages of the front of the history are not in it.

    `window_tokens` is what the cut counts: the parts in every prompt and the turns that are kept, the
    newest with all that was said in it. The next turn of the same path goes on from it: while it, the
    reply and the next message together are within `Window.room`, the cut stays where it is.
    `is_plain`: every message stands in the prompt as it is, and none is empty.
    """

    prompt: Prompt
    dropped: int
    window_tokens: int
    is_plain: bool


def fit(
    chat_format: ChatFormat,
    system: PromptMessage | None,
    history: Sequence[PromptMessage],
    window: Window,
) -> Fitted:
    """The prompt for a reply to the last message of `history`, cut at a turn boundary.

    A strict format gets the messages merged and folded (`roles`), so that every stored
    conversation can go on. Raises ContextLengthExceeded when the system text and the newest message
    do not fit, InvalidRequest for a content that cannot be encoded.
    """
    front = [] if system is None else _with_ids(chat_format, [system])
    known = _with_ids(chat_format, history)
    starts, turns = _turns(chat_format, known)
    protected = [
        *((message.name, _tokens(chat_format, message)) for message in front),
        ("chat format", _format_tokens(chat_format, has_system=bool(front))),
    ]
    kept = first_kept(turns, protected, window)
    dropped = starts[kept] if starts else 0
    given = [*front, *known[dropped:]]
    messages = roles.adapted(given, chat_format.accepts)
    prompt = render(chat_format, messages, End.REPLY)
    if prompt.tokens >= window.limit:
        raise ContextLengthExceeded(
            f"the prompt is {prompt.tokens} tokens, the context {window.limit}"
        )
    kept_tokens = sum(turn.opening + turn.answer for turn in turns[kept:])
    return Fitted(
        prompt=prompt,
        dropped=dropped,
        window_tokens=sum(tokens for _, tokens in protected) + kept_tokens,
        is_plain=messages == given and all(message.content for message in messages),
    )


def _with_ids(
    chat_format: ChatFormat, messages: Sequence[PromptMessage]
) -> Sequence[PromptMessage]:
    result = list(messages)
    missing: dict[bytes, list[int]] = {}
    for index, message in enumerate(messages):
        if message.token_ids is None:
            missing.setdefault(message.namespace, []).append(index)
    for namespace, indices in missing.items():
        named = [(messages[index].name, messages[index].content) for index in indices]
        found = encode_contents(chat_format.tokenizer, named, namespace)
        for index, token_ids in zip(indices, found, strict=True):
            result[index] = replace(messages[index], token_ids=token_ids)
    return result


def _turns(
    chat_format: ChatFormat, messages: Sequence[PromptMessage]
) -> tuple[list[int], list[Turn]]:
    """Where turns start, and their sizes. A user's message opens one; what comes first opens one too."""
    starts: list[int] = []
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        size = _tokens(chat_format, message)
        if message.role == "user" or not turns:
            starts.append(index)
            turns.append(Turn(opening=size, answer=0))
        else:
            turns[-1] = Turn(opening=turns[-1].opening, answer=turns[-1].answer + size)
    return starts, turns


def _tokens(chat_format: ChatFormat, message: PromptMessage) -> int:
    assert message.token_ids is not None
    return count(message.token_ids) + chat_format.overhead[message.role]


def _format_tokens(chat_format: ChatFormat, *, has_system: bool) -> int:
    """The header of the reply, and what a prompt without a system text begins with (often one of the
    format's own)."""
    shape: tuple[Role, ...] = ("user",)
    placed = chat_format.place(shape, frozenset(), End.REPLY)
    header = count(chat_format.ids(placed.after))
    if has_system:
        return header
    opening = count(chat_format.ids(placed.slots[0].before)) - chat_format.overhead["user"]
    return header + max(opening, 0)
