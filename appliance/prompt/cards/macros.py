"""Macros of card texts: one linear pass of our own over a stranger's text, never a template engine.

What they are replaced with is never looked at again, within another macro either: a name that looks like
one, or holds a comma, stays a name. What is no known macro stays as it was written. Draws are those of
`Beginning`: every turn writes the same.

Syntax: SPEC_V3.md, "Curly Braced Syntaxes"; spec_v1.md for `<USER>` and `<BOT>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from appliance.errors import InvalidCard
from appliance.prompt.templates.frozen_macros import Beginning

DEFAULT_USER = "User"
"""What a reader without a persona is called (V1: a default must exist)."""

NESTING_MAX = 8
"""Macros in macros; deeper ones stay text. A character is copied at most so often."""

OUTPUT_CHARS_MAX = 1024 * 1024
CHOICES_MAX = 1000

_TOKENS = re.compile(r"\{\{|\}\}|<(?:user|char|bot)>", re.IGNORECASE)
_COMMA = re.compile(r"(?<!\\),")
_COLONS = re.compile("::")
_ESCAPE = re.compile(r"\\(?=,)")
_BLANK = "\0"
_SIDES = re.compile(r"[dD]?([0-9]{1,6})\Z")
_SILENT = ("hidden_key:", "comment:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """A text without macros. `is_same_for_all`: it holds no draw, and no user's name but the default."""

    text: str
    is_same_for_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Macros:
    """What the macros of one card stand for in one conversation.

    `original` is what {{original}} stands for in a system prompt, None where it is no macro.
    """

    char: str
    user: str
    frozen: Beginning
    original: Expanded | None = None

    def expand(self, text: str, part: str) -> Expanded:
        """The text with its macros replaced; `part` tells its draws from those of other texts.

        Linear in the text. Raises InvalidCard when it grows past OUTPUT_CHARS_MAX.
        """
        run = _Run(macros=self, draws=self.frozen.macros(f"card {part}"))
        stack: list[list[_Marked]] = [[]]
        size = len(text)
        at = 0
        for token in _TOKENS.finditer(text):
            stack[-1].append(_as_written(text[at : token.start()]))
            at = token.end()
            found = token.group()
            if found == "{{":
                stack.append([])
                if len(stack) <= NESTING_MAX + 1:
                    continue
                _unclose(stack)
                continue
            if found == "}}" and len(stack) > 1:
                inner = _joined(stack.pop())
                said = run.value(inner)
                size -= len(inner.text) + 2
            elif found == "}}":
                said = _as_written(found)
            else:
                said = _value(run.named(found[1:-1].lower()))
            stack[-1].append(said)
            size += len(said.text) - len(found)
            if size > OUTPUT_CHARS_MAX:
                raise InvalidCard(
                    f"{part}: more than {OUTPUT_CHARS_MAX} characters once macros are replaced",
                    param=part,
                )
        stack[-1].append(_as_written(text[at:]))
        while len(stack) > 1:
            _unclose(stack)
        return Expanded(text=_joined(stack[0]).text, is_same_for_all=run.is_same_for_all)


class _Marked(NamedTuple):
    """A text, and the same with `_BLANK` for each character that is not its author's: syntax is looked
    for in this one, so that no name and nothing drawn is any."""

    text: str
    written: str

    def within(self, start: int, end: int | None = None) -> _Marked:
        return _Marked(self.text[start:end], self.written[start:end])

    def stripped(self) -> _Marked:
        left = len(self.written) - len(self.written.lstrip())
        return self.within(left, left + len(self.written.strip()))

    def split(self, pattern: re.Pattern[str]) -> list[_Marked]:
        ends = [match.span() for match in pattern.finditer(self.written)]
        starts = [0, *(end for _, end in ends)]
        return [
            self.within(start, end)
            for start, end in zip(starts, [*(start for start, _ in ends), None], strict=True)
        ]


def _as_written(text: str) -> _Marked:
    return _Marked(text, text)


def _value(text: str) -> _Marked:
    return _Marked(text, _BLANK * len(text))


def _joined(pieces: Iterable[_Marked]) -> _Marked:
    held = list(pieces)
    return _Marked("".join(one.text for one in held), "".join(one.written for one in held))


def _unclose(stack: list[list[_Marked]]) -> None:
    """Braces that no macro's end follows, or that are too deep, are text."""
    inner = stack.pop()
    stack[-1] += [_as_written("{{"), *inner]


class _Run:
    """One expansion: the draws it has made, and whether its text depends on the conversation."""

    def __init__(self, *, macros: Macros, draws: object) -> None:
        assert isinstance(draws, dict)
        self._macros = macros
        self._pick: Callable[[list[str]], str] = draws["pick"]
        self._roll: Callable[[int], int] = draws["roll"]
        self.is_same_for_all = True

    def named(self, name: str) -> str:
        """The character's or the user's name."""
        if name != "user":
            return self._macros.char
        if self._macros.user != DEFAULT_USER:
            self.is_same_for_all = False
        return self._macros.user

    def value(self, inner: _Marked) -> _Marked:
        """What stands for `{{inner}}`; the same text again for no macro."""
        word = inner.stripped()
        lower = word.written[:12].lower()
        if lower in ("char", "user", "bot"):
            return _value(self.named(lower))
        if word.written.startswith("//") or lower.startswith(_SILENT):
            return _value("")
        if lower == "original" and self._macros.original is not None:
            original = self._macros.original
            self.is_same_for_all = self.is_same_for_all and original.is_same_for_all
            return _value(original.text)
        if lower.startswith("reverse:"):
            return _value(word.text[len("reverse:") :][::-1])
        name, separator, rest = word.written.partition(":")
        said = None
        if separator and rest:
            # `NAME::` is the same as `NAME:`.
            given = word.within(len(name) + 1 + rest.startswith(":"))
            if name.lower() in ("random", "pick"):
                said = self._drawn(given)
            elif name.lower() == "roll":
                said = self._rolled(given)
        if said is None:
            return _joined((_as_written("{{"), inner, _as_written("}}")))
        return _value(said)

    def _drawn(self, given: _Marked) -> str | None:
        """One of `A,B,C` with `\\,` for a comma, or parted by `::`."""
        if "::" in given.written:
            choices = [choice.text for choice in given.split(_COLONS)]
        else:
            choices = [
                "".join(piece.text for piece in choice.split(_ESCAPE))
                for choice in given.split(_COMMA)
            ]
        if not given.text or len(choices) > CHOICES_MAX:
            return None
        self.is_same_for_all = False
        return self._pick(choices)

    def _rolled(self, given: _Marked) -> str | None:
        sides = _SIDES.match(given.text.strip())
        if sides is None or int(sides[1]) < 1:
            return None
        self.is_same_for_all = False
        return str(self._roll(int(sides[1])))
