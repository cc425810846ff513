"""What one rendering may use: processor time, and characters made. Owns the limits, knows no template."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar

CPU_SECONDS_MAX = 0.5
"""Processor time of one rendering, of this thread alone: a busy machine makes no template fail."""

OUTPUT_CHARS_MAX = 4 * 1024 * 1024
"""Characters of one rendered prompt, or of one value made on the way."""

WORK_CHARS_MAX = 16 * 1024 * 1024
"""Characters of all values made on the way, so that memory is bounded as time is."""

ITEM_CHARS = 8
"""What an item of a list counts as: a reference is as large as that."""

SEARCH_STEPS_MAX = 128 * 1024 * 1024
"""Of looking for one text in another: some methods take the product of their lengths, in one call that
nothing interrupts."""

NUMBER_BITS_MAX = 4096
NESTING_MAX = 16
"""Includes within includes, and lists within lists of a value."""

PARTS_MAX = 20_000
"""Parts of one rendered prompt."""

SOURCE_CHARS_MAX = 256 * 1024
"""A template file, or one that it includes."""


class LimitExceeded(Exception):
    """A template needs more than it may; the sentence names the limit."""


class Budget:
    """What is left to one rendering."""

    __slots__ = ("_deadline", "_output", "_work")

    def __init__(self) -> None:
        self._deadline = time.thread_time() + CPU_SECONDS_MAX
        self._work = WORK_CHARS_MAX
        self._output = OUTPUT_CHARS_MAX

    def tick(self) -> None:
        """A step of a loop or a call; raises LimitExceeded when the time is over."""
        if time.thread_time() > self._deadline:
            raise LimitExceeded(f"it runs longer than {CPU_SECONDS_MAX:g} s")

    def make(self, size: int) -> None:
        """A value of `size` characters or items is about to be made."""
        if size > OUTPUT_CHARS_MAX:
            raise LimitExceeded(f"it makes a value of more than {OUTPUT_CHARS_MAX} characters")
        self._work -= size
        if self._work < 0:
            raise LimitExceeded(f"it makes more than {WORK_CHARS_MAX} characters on the way")

    def made(self, value: object) -> None:
        """A value was made: charge what it holds, if it is a text or a collection."""
        if isinstance(value, Sized) and not isinstance(value, type):
            self.make(len(value) if isinstance(value, str) else ITEM_CHARS * len(value))

    def search(self, text: str, others: Iterable[object]) -> None:
        """Texts are about to be looked for in a text, or their characters at its ends."""
        chars = sum(len(other) for other in others if isinstance(other, str))
        if len(text) * chars > SEARCH_STEPS_MAX:
            raise LimitExceeded(
                f"it looks for {chars} characters in a text of {len(text)} (at most "
                f"{SEARCH_STEPS_MAX} steps)"
            )

    def write(self, chars: int) -> None:
        """Characters of the prompt itself."""
        self._output -= chars
        if self._output < 0:
            raise LimitExceeded(f"it writes more than {OUTPUT_CHARS_MAX} characters")


_current: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def budget() -> Iterator[Budget]:
    """A new budget, which the code of templates rendered within draws on."""
    made = Budget()
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)


def current() -> Budget:
    """The budget of the rendering that runs."""
    return _current.get()
