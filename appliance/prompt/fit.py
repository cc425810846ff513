"""The prompt of a stored conversation: its front, as much history as fits, the reply's header.

Owns what is measured and in which order things are tried. Never: which path of the tree (`chat`), or
the cut itself (`_core`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance._core import Assembled, PromptTooLong, cut
from appliance.errors import ContextLengthExceeded
from appliance.prompt.chat_format import roles
from appliance.prompt.chat_format.chat_format import ChatFormat, End
from appliance.prompt.chat_format.contents import columns, encode_content, naming_the_refused
from appliance.prompt.chat_format.render import prompt_of, render
from appliance.prompt.messages import Prompt, PromptMessage, Role
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import HISTORY_PRIORITY, Window
from appliance.tokens import count


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A part that a cut took out: of several those with the higher number went first, and parts of one
    `block` went together."""

    name: str
    truncation_priority: int
    block: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt, how many of the oldest messages are not in it, and which parts are not.

    Lore and notes that went with their messages are not counted in `messages_dropped`. `window_tokens`
    is what the cut counts: the parts and the turns that are kept, the newest with all that was said
    in it. The next turn of the same path goes on from it: while it, the reply and the next message
    have room (`Window.has_room_for`), the cut stays where it is. `is_plain`: every message stands
    in the prompt as it is, none is empty, nothing follows the newest.
    """

    prompt: Prompt
    messages_dropped: int
    left_out: tuple[LeftOut, ...] = ()
    window_tokens: int
    is_plain: bool


def fit(
    chat_format: ChatFormat,
    front: Sequence[PromptMessage],
    history: Sequence[PromptMessage],
    window: Window,
    *,
    after: Sequence[PromptMessage] = (),
    history_priority: int = HISTORY_PRIORITY,
) -> Fitted:
    """The prompt for a reply to the last message of `history`, cut at a turn boundary.

    `front` and `after` (system texts between the newest message and its reply, which the next prompt has
    in another place) are in every prompt but for those whose `truncation_priority` is not 0: these go at
    a cut, as `_core.cut` says. A strict format gets the messages merged and folded (`roles`), so that
    every stored conversation can go on. Raises ContextLengthExceeded when what is never cut and the
    newest turn do not fit, InvalidRequest for a content that cannot be encoded.
    """
    cutting = _Cutting(
        chat_format=chat_format,
        messages=[*front, *history, *after],
        front=len(front),
        after=len(after),
        history_priority=history_priority,
        window=window,
    )
    with naming_the_refused(cutting.messages):
        try:
            (gone, left_out, window_tokens), assembled = cutting.cut()
        except PromptTooLong as error:
            raise ContextLengthExceeded(str(error)) from error
    given, parts = cutting.messages, [*front, *after]
    if gone or left_out:
        out = frozenset(left_out)
        stays = [index for index in range(len(parts)) if index not in out]
        given = [
            *(parts[index] for index in stays if index < len(front)),
            *history[gone:],
            *(parts[index] for index in stays if index >= len(front)),
        ]
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
        messages_dropped=sum(not message.is_lead for message in history[:gone]),
        left_out=tuple(_left_out(parts[index]) for index in left_out),
        window_tokens=window_tokens,
        is_plain=not after and taken == given and all(message.content for message in taken),
    )


def _left_out(part: PromptMessage) -> LeftOut:
    return LeftOut(name=part.name, truncation_priority=part.truncation_priority, block=part.block)


def forms_of_front(front: Sequence[PromptMessage]) -> list[list[PromptMessage]]:
    """Every form that the parts before a history have in some prompt: whole, then without those that go
    first, and so on."""
    units: dict[object, list[int]] = {}
    for index, message in enumerate(front):
        units.setdefault(index if message.block is None else message.block, []).append(index)
    leaving = [unit for unit in units.values() if min(_priority(front, unit)) > 0]
    leaving.sort(key=lambda unit: -min(_priority(front, unit)))
    found, gone = [list(front)], set[int]()
    for unit in leaving:
        gone |= set(unit)
        found.append([message for index, message in enumerate(front) if index not in gone])
    return found


def _priority(front: Sequence[PromptMessage], unit: list[int]) -> list[int]:
    return [front[index].truncation_priority for index in unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cutting:
    """What the cut decides about: so many messages in `front`, the history, so many `after`; the room."""

    chat_format: ChatFormat
    messages: list[PromptMessage]
    front: int
    after: int
    history_priority: int
    window: Window

    def cut(self) -> tuple[tuple[int, list[int], int], Assembled | None]:
        """What is kept, and the prompt: None where it has to be placed or adapted by hand."""
        chat_format, behind = self.chat_format, len(self.messages) - self.after
        front, after = _parts(self.messages[: self.front]), _parts(self.messages[behind:])
        holds = _holds(self.messages[self.front : behind])
        pieces = chat_format.pieces_for(self.messages)
        if pieces is not None:
            return pieces.fit(
                columns(self.messages),
                public=PUBLIC,
                front=front,
                after=after,
                holds=holds,
                history_priority=self.history_priority,
                window=self.window.sizes,
            )
        sizes = [_tokens(chat_format, message) for message in self.messages]
        kept = cut(
            [(self.messages[at].role, sizes[at]) for at in range(self.front, behind)],
            front=front,
            after=after,
            tokens=sizes[: self.front] + sizes[behind:],
            format_tokens=_format_tokens(chat_format, has_system=self.front > 0),
            holds=holds,
            history_priority=self.history_priority,
            window=self.window.sizes,
        )
        return kept, None


def _parts(messages: Sequence[PromptMessage]) -> list[tuple[str, int, str | None]]:
    return [(message.name, message.truncation_priority, message.block) for message in messages]


def _holds(history: Sequence[PromptMessage]) -> list[int]:
    """The messages that go on with the block of the one before them."""
    return [
        index
        for index, message in enumerate(history)
        if message.block is not None and index > 0 and history[index - 1].block == message.block
    ]


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
