"""Stand-ins for values in a text that is still to be parsed: nothing in a value can become structure.

A stand-in is a plain YAML scalar of digits between two private-use characters, with a number drawn for
each rendering, so that no value can contain one. Never: YAML or Jinja.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from appliance.prompt.templates.budget import NESTING_MAX, Budget, LimitExceeded
from appliance.prompt.templates.text_size import text_of

_DIGITS = 24


class Written(str):
    """Text that the template's own source wrote, values in it as stand-ins already: a macro's result."""

    __slots__ = ()


class Placeholders:
    """The values of one rendering, by the number of their stand-in.

    `space` is what the template's source has for a space, in its own texts and in values made of them.
    """

    def __init__(self, space: str) -> None:
        self._space = space
        nonce = str(secrets.randbelow(10**_DIGITS)).zfill(_DIGITS)
        self._values: list[object] = []
        self._nonce = nonce
        # What is left of a stand-in that was cut in two.
        self._half = re.compile(f"\ue000{nonce[:12]}|{nonce[12:]}:[0-9]")
        self._pattern = re.compile(f"\ue000{nonce}:([0-9]+)\ue001")

    def put(self, value: object) -> Written:
        """The stand-in of a value."""
        self._values.append(value)
        return Written(f"\ue000{self._nonce}:{len(self._values) - 1}\ue001")

    def values_in(self, text: str) -> list[object]:
        """The values whose stand-ins are in a text."""
        return [self._values[int(match[1])] for match in self._pattern.finditer(text)]

    def filled(self, text: str, budget: Budget) -> str:
        """The text with the values in place of their stand-ins, those within values as well.

        Raises LimitExceeded past the budget, and ValueError for half a stand-in: the template cut a
        macro's result.
        """
        result = self._filled(text, budget, 0)
        if self._half.search(result) is not None:
            raise ValueError("half a stand-in")
        budget.write(len(result))
        return result

    def _filled(self, text: str, budget: Budget, depth: int) -> str:
        if depth > NESTING_MAX:
            raise LimitExceeded(f"values within values, more than {NESTING_MAX} deep")

        def value(match: re.Match[str]) -> str:
            found = text_of(self._values[int(match[1])], budget)
            budget.make(len(found))
            return self._filled(found, budget, depth + 1)

        return self._pattern.sub(value, text.replace(self._space, " "))


_current: ContextVar[Placeholders] = ContextVar("template_placeholders")


@contextmanager
def placeholders(space: str) -> Iterator[Placeholders]:
    """New stand-ins for what is rendered within."""
    made = Placeholders(space)
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)


def current() -> Placeholders:
    """The stand-ins of the rendering that runs."""
    return _current.get()
