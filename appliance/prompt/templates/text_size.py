"""How long a value is as a text, told before the text is made. Never: what the text says.

A list of lists that are one and the same holds little and is written at any length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MappingView
from itertools import chain
from typing import cast

from jinja2.utils import Namespace

from appliance.prompt.templates.budget import (
    ITEM_CHARS,
    OUTPUT_CHARS_MAX,
    Budget,
    LimitExceeded,
    current,
)

_OTHER_CHARS = 24
_DEPTH_MAX = 64
_STEPS = 4096
"""So many items are counted between two looks at the time."""

_END = object()


def text_of(value: object, budget: Budget) -> str:
    """`str(value)`, which draws on the budget before it is made; a text is what it is, and free.

    Raises LimitExceeded, and what `str` raises.
    """
    if isinstance(value, str):
        return value
    budget.make(text_chars(value))
    return str(value)


def text_chars(value: object) -> int:
    """About how many characters a value is written in; counting ends past OUTPUT_CHARS_MAX.

    Part of a rendering. Raises LimitExceeded for one that is nested too deeply to be written, or holds
    itself.
    """
    chars = 0
    waiting: list[Iterator[object]] = [iter((value,))]
    steps = 0
    while waiting and chars <= OUTPUT_CHARS_MAX:
        steps += 1
        if steps % _STEPS == 0:
            current().tick()
        item = next(waiting[-1], _END)
        if item is _END:
            waiting.pop()
            continue
        chars += ITEM_CHARS
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, int):
            chars += item.bit_length() // 3
        elif (held := _held(item)) is not None:
            waiting.append(held)
            if len(waiting) > _DEPTH_MAX:
                raise LimitExceeded(f"it writes lists within lists, more than {_DEPTH_MAX} deep")
        else:
            chars += _OTHER_CHARS
    return chars


def weigh(*values: object) -> None:
    """Values that are to be compared or looked up: each costs what it holds in all its depths, as one
    call that nothing interrupts goes through it."""
    for value in values:
        if not isinstance(value, str) and _held(value) is not None:
            current().make(text_chars(value))


def _held(value: object) -> Iterator[object] | None:
    """What a value writes within itself; None for one that holds nothing."""
    if isinstance(value, Namespace):
        # Its own names go past the template's.
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    if isinstance(value, list | tuple | set | frozenset | deque | MappingView):
        return iter(cast(Iterable[object], value))
    return None
