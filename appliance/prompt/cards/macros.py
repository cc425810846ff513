"""Macros of card texts: one linear pass of our own over a stranger's text, never a template engine.

What they are replaced with is never looked at again: a name that looks like a macro stays a name. What is
no known macro stays as it was written. Draws are those of `Beginning`: every turn writes the same.

Syntax: SPEC_V3.md, "Curly Braced Syntaxes"; spec_v1.md for `<USER>` and `<BOT>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

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
        stack: list[list[str]] = [[]]
        size = len(text)
        at = 0
        for token in _TOKENS.finditer(text):
            stack[-1].append(text[at : token.start()])
            at = token.end()
            found = token.group()
            if found == "{{":
                stack.append([])
                if len(stack) <= NESTING_MAX + 1:
                    continue
                _unclose(stack)
                continue
            if found == "}}" and len(stack) > 1:
                inner = "".join(stack.pop())
                said = run.value(inner)
                size -= len(inner) + 2
            elif found == "}}":
                said = found
            else:
                said = run.named(found[1:-1].lower())
            stack[-1].append(said)
            size += len(said) - len(found)
            if size > OUTPUT_CHARS_MAX:
                raise InvalidCard(
                    f"{part}: more than {OUTPUT_CHARS_MAX} characters once macros are replaced",
                    param=part,
                )
        stack[-1].append(text[at:])
        while len(stack) > 1:
            _unclose(stack)
        return Expanded(text="".join(stack[0]), is_same_for_all=run.is_same_for_all)


def _unclose(stack: list[list[str]]) -> None:
    """Braces that no macro's end follows, or that are too deep, are text."""
    inner = stack.pop()
    stack[-1] += ["{{", *inner]


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

    def value(self, inner: str) -> str:
        """What stands for `{{inner}}`; the same text again for no macro."""
        word = inner.strip()
        lower = word[:12].lower()
        if lower in ("char", "user", "bot"):
            return self.named(lower)
        if word.startswith("//") or lower.startswith(_SILENT):
            return ""
        if lower == "original" and self._macros.original is not None:
            original = self._macros.original
            self.is_same_for_all = self.is_same_for_all and original.is_same_for_all
            return original.text
        if lower.startswith("reverse:"):
            return word[len("reverse:") :][::-1]
        name, separator, rest = word.partition(":")
        if separator and name.lower() in ("random", "pick"):
            return self._drawn(inner, rest)
        if separator and name.lower() == "roll":
            return self._rolled(inner, rest)
        return "{{" + inner + "}}"

    def _drawn(self, inner: str, rest: str) -> str:
        """`A,B,C` with `\\,` for a comma; the same after a second colon, or parted by `::`."""
        rest = rest.removeprefix(":")
        if "::" in rest:
            choices = rest.split("::")
        else:
            choices = [choice.replace("\\,", ",") for choice in _COMMA.split(rest)]
        if not rest or len(choices) > CHOICES_MAX:
            return "{{" + inner + "}}"
        self.is_same_for_all = False
        return self._pick(choices)

    def _rolled(self, inner: str, rest: str) -> str:
        sides = _SIDES.match(rest.removeprefix(":").strip())
        if sides is None or int(sides[1]) < 1:
            return "{{" + inner + "}}"
        self.is_same_for_all = False
        return str(self._roll(int(sides[1])))
