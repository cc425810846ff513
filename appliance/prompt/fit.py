"""The prompt of a stored conversation: its front, as much history as fits, the reply's header.

Owns what is measured and in which order things are tried. Never: which path of the tree (`chat`), or
the cut itself (`_core`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance._core import Assembled, PromptTooLong, cut
from appliance.errors import ContextLengthExceeded
from appliance.prompt import roles
from appliance.prompt.chat_format import ChatFormat, End
from appliance.prompt.contents import columns, encode_content, naming_the_refused
from appliance.prompt.messages import Prompt, PromptMessage, Role
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.render import prompt_of, render
from appliance.prompt.truncate import Window
from appliance.tokens import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt, and how many messages of the front of the history are not in it.

    `window_tokens` is what the cut counts: the parts in every prompt and the turns that are kept, the
    newest with all that was said in it. The next turn of the same path goes on from it: while it, the
    reply and the next message together are within `Window.room`, the cut stays where it is.
    `is_plain`: every message stands in the prompt as it is, none is empty, nothing follows the newest.
    """

    prompt: Prompt
    dropped: int
    window_tokens: int
    is_plain: bool


def fit(
    chat_format: ChatFormat,
    front: Sequence[PromptMessage],
    history: Sequence[PromptMessage],
    window: Window,
    *,
    after: Sequence[PromptMessage] = (),
) -> Fitted:
    """The prompt for a reply to the last message of `history`, cut at a turn boundary.

    `front` is in every prompt. So is `after`, system texts between the newest message and its reply:
    they belong to its turn, and the next prompt has them in another place. A strict format gets the
    messages merged and folded (`roles`), so that every stored conversation can go on. Raises
    ContextLengthExceeded when the front and the newest turn do not fit, InvalidRequest for a content
    that cannot be encoded.
    """
    assert all(message.role == "system" for message in after)
    history = [*history, *after]
    messages = [*front, *history]
    with naming_the_refused(messages):
        try:
            dropped, window_tokens, assembled = _cut(chat_format, front, messages, window)
        except PromptTooLong as error:
            raise ContextLengthExceeded(str(error)) from error
    given = messages if not dropped else [*front, *history[dropped:]]
    if assembled is None:
        taken = roles.adapted(given, chat_format.accepts)
        prompt = render(chat_format, taken, End.REPLY)
    else:
        taken = given
        prompt = prompt_of(chat_format, given, assembled)
    if prompt.tokens >= window.limit:
        raise ContextLengthExceeded(
            f"the prompt is {prompt.tokens} tokens, the context {window.limit}"
        )
    return Fitted(
        prompt=prompt,
        dropped=dropped,
        window_tokens=window_tokens,
        is_plain=not after and taken == given and all(message.content for message in taken),
    )


def _cut(
    chat_format: ChatFormat,
    front: Sequence[PromptMessage],
    messages: Sequence[PromptMessage],
    window: Window,
) -> tuple[int, int, Assembled | None]:
    """(dropped, window_tokens, the prompt): None where it has to be placed or adapted by hand."""
    pieces = chat_format.pieces_for(messages)
    if pieces is not None:
        return pieces.fit(
            columns(messages),
            public=PUBLIC,
            front=[message.name for message in front],
            limit=window.limit,
            reserve=window.reserve,
            step=window.step,
        )
    sizes = [(message.role == "user", _tokens(chat_format, message)) for message in messages]
    dropped, window_tokens = cut(
        sizes[len(front) :],
        protected=[
            *((message.name, size) for message, (_, size) in zip(front, sizes, strict=False)),
            ("chat format", _format_tokens(chat_format, has_system=bool(front))),
        ],
        limit=window.limit,
        reserve=window.reserve,
        step=window.step,
    )
    return dropped, window_tokens, None


def _tokens(chat_format: ChatFormat, message: PromptMessage) -> int:
    token_ids = message.token_ids
    if token_ids is None:
        token_ids = encode_content(
            chat_format.tokenizer,
            message.content,
            message.namespace,
            param=f"{message.name}.content",
        )
    return count(token_ids) + chat_format.overhead[message.role]


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
