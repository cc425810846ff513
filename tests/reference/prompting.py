"""Slow reference of prompt assembly: token by token, and the cut by its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from appliance.prompt import roles
from appliance.prompt.chat_format import ChatFormat, End
from appliance.prompt.messages import PromptMessage
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import Window
from appliance.tokens import unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Sizes of one turn in tokens: what opens it and what answers it."""

    opening: int
    answer: int


def first_kept(turns: Sequence[Turn], fixed: int, window: Window) -> int | None:
    """The index of the first turn in the prompt of the last one's reply; None when it does not fit."""

    def prompt(first: int, last: int) -> int:
        before = sum(turn.opening + turn.answer for turn in turns[first:last])
        return fixed + before + turns[last].opening

    first = 0
    for last in range(len(turns)):
        if prompt(first, last) > window.room:
            while first < last and prompt(first, last) > window.room - window.step:
                first += 1
    newest = turns[-1].opening if turns else 0
    return first if fixed + newest <= window.room else None


def turns_of(sizes: Sequence[tuple[bool, int]]) -> tuple[list[int], list[Turn]]:
    """Where turns start, and their sizes, of messages as (opens a turn, tokens)."""
    starts = [index for index, (opens, _) in enumerate(sizes) if opens or index == 0]
    turns = []
    for start, end in zip(starts, [*starts[1:], len(sizes)], strict=False):
        answer = sum(tokens for _, tokens in sizes[start + 1 : end])
        turns.append(Turn(opening=sizes[start][1], answer=answer))
    return starts, turns


def assembled(
    chat_format: ChatFormat, messages: Sequence[PromptMessage], end: End
) -> tuple[list[int], list[tuple[bytes, int]], list[int]]:
    """(ids, stretches, tokens of each part)."""
    empty = frozenset(index for index, message in enumerate(messages) if not message.content)
    placement = chat_format.place([message.role for message in messages], empty, end)
    ids: list[int] = []
    owners: list[bytes] = []
    parts: list[int] = []
    owner = messages[0].namespace
    for index, (message, slot) in enumerate(zip(messages, placement.slots, strict=True)):
        goes_on = end is End.CONTINUE and index == len(messages) - 1
        text = message.content if goes_on else slot.trimmed(message.content)
        before = unpack(chat_format.ids(slot.before))
        content = content_ids(chat_format, message, text)
        owners += [owner] * len(before)
        owner = owner if message.namespace == PUBLIC else message.namespace
        owners += [owner] * len(content)
        ids += [*before, *content]
        parts.append(len(before) + len(content))
    after = unpack(chat_format.ids(placement.after))
    if after:
        parts.append(len(after))
    owners += [owner] * len(after)
    stretches = [(name, len(list(run))) for name, run in groupby(owners)]
    return [*ids, *after], stretches, parts


def content_ids(chat_format: ChatFormat, message: PromptMessage, text: str) -> Sequence[int]:
    """Stored ids when they are of this text, else those of the memo."""
    if message.token_ids is not None and text == message.content:
        return unpack(message.token_ids)
    return unpack(chat_format.tokenizer.encode(text, message.namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What `fit` should give."""

    ids: list[int]
    stretches: list[tuple[bytes, int]]
    parts: list[int]
    dropped: int
    window_tokens: int


def fitted(
    chat_format: ChatFormat,
    front: Sequence[PromptMessage],
    history: Sequence[PromptMessage],
    window: Window,
) -> Expected | None:
    """The prompt of a conversation; None when there is none."""

    def size(message: PromptMessage) -> int:
        content = content_ids(chat_format, message, message.content)
        return len(content) + chat_format.overhead[message.role]

    first = chat_format.place(["user"], frozenset(), End.REPLY)
    fixed = len(unpack(chat_format.ids(first.after)))
    if not front:
        opening = len(unpack(chat_format.ids(first.slots[0].before)))
        fixed += max(0, opening - chat_format.overhead["user"])
    fixed += sum(size(message) for message in front)
    starts, turns = turns_of([(message.role == "user", size(message)) for message in history])
    kept = first_kept(turns, fixed, window)
    if kept is None:
        return None
    dropped = starts[kept] if starts else 0
    messages = roles.adapted([*front, *history[dropped:]], chat_format.accepts)
    ids, stretches, parts = assembled(chat_format, messages, End.REPLY)
    if len(ids) >= window.limit:
        return None
    return Expected(
        ids=ids,
        stretches=stretches,
        parts=parts,
        dropped=dropped,
        window_tokens=fixed + sum(turn.opening + turn.answer for turn in turns[kept:]),
    )
