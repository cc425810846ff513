"""Slow reference of prompt assembly: token by token, and the cut by its definition."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from appliance.prompt.chat_format import roles
from appliance.prompt.chat_format.chat_format import ChatFormat, End
from appliance.prompt.messages import PromptMessage
from appliance.prompt.namespace import PUBLIC
from appliance.prompt.truncate import HISTORY_PRIORITY, Window
from appliance.tokens import unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Sizes of one turn in tokens: what opens it and what answers it."""

    opening: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of a history: who says it, its tokens, and whether it goes on with a block."""

    role: str
    tokens: int
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part around the history: its tokens, what may become of it, and on which side it stands."""

    tokens: int
    priority: int = 0
    block: str | None = None
    is_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The first turn that is kept, the parts that are not, and all that is counted."""

    first: int
    left_out: list[int]
    window_tokens: int


def kept(
    turns: Sequence[Turn],
    parts: Sequence[Part],
    format_tokens: int,
    window: Window,
    history_priority: int = HISTORY_PRIORITY,
) -> Kept | None:
    """What is in the prompt of the last turn's reply, found turn by turn; None when it does not fit."""
    gone: list[int] = []
    first = 0
    cut = 0

    def size(last: int, opening: int) -> int:
        around = sum(part.tokens for index, part in enumerate(parts) if index not in gone)
        before = sum(turn.opening + turn.answer for turn in turns[first:last])
        return format_tokens + around + before + opening

    for last, turn in enumerate(turns or [Turn(opening=0, answer=0)]):
        asked = max(turn.opening, window.draft)
        if size(last, asked) <= window.room:
            continue
        place = cut + size(last, asked) - window.room
        if window.step:
            place = math.ceil((place + window.step // 4) / window.step) * window.step
        while cut < place:
            leaving = _next(parts, gone)
            if leaving and _is_early(parts, leaving, history_priority):
                gone += leaving
                cut += sum(parts[index].tokens for index in leaving)
            elif first < last:
                cut += turns[first].opening + turns[first].answer
                first += 1
            else:
                break
        while size(last, turn.opening) > window.room:
            leaving = _next(parts, gone)
            if not leaving:
                break
            gone += leaving
    everything = [index for index in range(len(parts)) if _priority(parts, _unit(parts, index)) > 0]
    always = format_tokens + sum(p.tokens for i, p in enumerate(parts) if i not in everything)
    if always + (turns[-1].opening if turns else 0) > window.room:
        return None
    spoken = sum(turn.opening + turn.answer for turn in turns[first:])
    return Kept(first=first, left_out=sorted(gone), window_tokens=size(0, 0) + spoken)


def _next(parts: Sequence[Part], gone: Sequence[int]) -> list[int]:
    """The parts that go next: of those that may and are left, the highest number, the first of equals."""
    units = [_unit(parts, index) for index in range(len(parts)) if index not in gone]
    leaving = [unit for unit in units if _priority(parts, unit) > 0]
    return max(leaving, key=lambda unit: (_priority(parts, unit), -unit[0]), default=[])


def _unit(parts: Sequence[Part], index: int) -> list[int]:
    block = parts[index].block
    if block is None:
        return [index]
    return [other for other, part in enumerate(parts) if part.block == block]


def _priority(parts: Sequence[Part], unit: Sequence[int]) -> int:
    return min(parts[index].priority for index in unit)


def _is_early(parts: Sequence[Part], unit: Sequence[int], history_priority: int) -> bool:
    priority = _priority(parts, unit)
    return priority > history_priority or (
        priority == history_priority and not parts[unit[0]].is_behind
    )


def turns_of(history: Sequence[Said]) -> tuple[list[int], list[Turn]]:
    """Where the turns of a history start, and their sizes: by a pattern over a letter a message."""
    letters = "".join(
        "f" if said.goes_on else {"user": "u", "system": "s", "assistant": "f"}[said.role]
        for said in history
    )
    first = re.match("s*u|s+|f", letters)
    if first is None:
        return [], []
    openings = [first, *re.compile("s*u").finditer(letters, first.end())]
    starts = [opening.start() for opening in openings]

    def tokens(start: int, end: int) -> int:
        return sum(said.tokens for said in history[start:end])

    ends = [*starts[1:], len(history)]
    return starts, [
        Turn(opening=tokens(*opening.span()), answer=tokens(opening.end(), end))
        for opening, end in zip(openings, ends, strict=True)
    ]


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
    left_out: tuple[str, ...]
    window_tokens: int


def fitted(
    chat_format: ChatFormat,
    front: Sequence[PromptMessage],
    history: Sequence[PromptMessage],
    window: Window,
    *,
    after: Sequence[PromptMessage] = (),
    history_priority: int = HISTORY_PRIORITY,
) -> Expected | None:
    """The prompt of a conversation; None when there is none."""

    def size(message: PromptMessage) -> int:
        content = content_ids(chat_format, message, message.content)
        return len(content) + chat_format.overhead[message.role]

    first = chat_format.place(["user"], frozenset(), End.REPLY)
    format_tokens = len(unpack(chat_format.ids(first.after)))
    if not front:
        opening = len(unpack(chat_format.ids(first.slots[0].before)))
        format_tokens += max(0, opening - chat_format.overhead["user"])
    around = [*front, *after]
    parts = [
        Part(
            tokens=size(message),
            priority=message.truncation_priority,
            block=message.block,
            is_behind=index >= len(front),
        )
        for index, message in enumerate(around)
    ]
    blocks = [None, *(message.block for message in history)]
    said = [
        Said(
            role=message.role,
            tokens=size(message),
            goes_on=message.block is not None and message.block == before,
        )
        for message, before in zip(history, blocks, strict=False)
    ]
    starts, turns = turns_of(said)
    found = kept(turns, parts, format_tokens, window, history_priority)
    if found is None:
        return None
    dropped = starts[found.first] if starts else 0
    stays = [index not in found.left_out for index in range(len(around))]
    messages = [
        *(message for message, kept in zip(front, stays, strict=False) if kept),
        *history[dropped:],
        *(message for message, kept in zip(after, stays[len(front) :], strict=True) if kept),
    ]
    taken = roles.adapted(messages, chat_format.accepts)
    ids, stretches, sizes = assembled(chat_format, taken, End.REPLY)
    if len(ids) >= window.limit:
        return None
    return Expected(
        ids=ids,
        stretches=stretches,
        parts=sizes,
        dropped=dropped,
        left_out=tuple(around[index].name for index in found.left_out),
        window_tokens=found.window_tokens,
    )
