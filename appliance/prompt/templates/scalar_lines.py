"""On which lines of its file the code in a YAML scalar stands, however the scalar is written.

YAML joins lines of folded, quoted and plain texts, and quoted ones may write line ends: Jinja's own count
of lines is another one. Never: what the code means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import yaml
from jinja2 import Environment, TemplateSyntaxError

_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_ESCAPED = {"x": 2, "u": 4, "U": 8}
_WHITE = ("", *" \tt_nrvfNLP")
"""Escapes of white space, and of a line end."""

_BEGINS = frozenset({"variable_begin", "block_begin"})
_LEXER = Environment(keep_trailing_newline=True, autoescape=False).lexer


def lines_of(node: yaml.ScalarNode, text: str) -> list[int]:
    """The line, from 1, of each character of a scalar in `text`, the file it was read from.

    But for white space and escapes a scalar's characters are those of the file, in their order. White
    space is on the line of what follows it.
    """
    written = list(_written(node, text))
    line = written[-1] if written else node.start_mark.line + 1
    found = []
    for character in reversed(str(node.value)):
        if not character.isspace() and written:
            line = written.pop()
        found.append(line)
    return found[::-1]


def _written(node: yaml.ScalarNode, text: str) -> Iterator[int]:
    """The lines of the characters of a scalar that are no white space."""
    quote = node.style if node.style in ("'", '"') else ""
    first, last = node.start_mark, node.end_mark
    rows = _rows(text)[first.line : last.line + 1]
    for number, row in enumerate(rows, first.line + 1):
        start = first.column + len(quote) if number == first.line + 1 else 0
        end = last.column - len(quote) if number == last.line + 1 else len(row)
        if node.style in ("|", ">") and number == first.line + 1:
            continue  # the header
        at = start
        while at < end:
            step, is_shown = 1, not row[at].isspace()
            if quote == "'" and row[at] == "'":
                step = 2
            elif quote == '"' and row[at] == "\\":
                kind = row[at + 1] if at + 1 < len(row) else ""
                step = 2 + _ESCAPED.get(kind, 0)
                is_shown = kind not in _WHITE and not _is_white(kind, row[at + 2 : at + step])
            if is_shown:
                yield number
            at += step


@lru_cache(maxsize=4)
def _rows(text: str) -> list[str]:
    """The lines of a file, of which many scalars are asked for."""
    return _BREAK.split(text)


def _is_white(kind: str, digits: str) -> bool:
    return kind in _ESCAPED and chr(int(digits, 16)).isspace()


def traced(code: str, lines: list[int]) -> tuple[str, tuple[int, ...]]:
    """Code with line ends in its tags such that none of its lines stands on several of the file; and the
    line of the file that each stands on.

    `lines` are those of its characters. What it writes stays the same: only tags get line ends.
    """
    assert len(code) == len(lines)
    pieces: list[str] = []
    found = [lines[0] if lines else 1]
    at = 0
    for kind, value, start in _tokens(code):
        end = start + len(value)
        pieces.append(code[at:end])
        found += _after(code, lines, at, end)
        at = end
        is_within = kind in _BEGINS or kind == "whitespace"
        if is_within and end < len(lines) and lines[end] != found[-1]:
            pieces.append("\n")
            found.append(lines[end])
    pieces.append(code[at:])
    found += _after(code, lines, at, len(code))
    return "".join(pieces), tuple(found)


def traced_expression(code: str, lines: list[int]) -> tuple[str, tuple[int, ...]]:
    """The same for code that is all within one tag."""
    around = [lines[0] if lines else 1] * 2
    text, found = traced("{{" + code + "}}", [*around, *lines, *around])
    return text[2:-2], found


def _after(code: str, lines: list[int], start: int, end: int) -> list[int]:
    """The lines of the file that follow the line ends in a stretch of code."""
    last = len(lines) - 1
    return [lines[min(index + 1, last)] for index in range(start, end) if code[index] == "\n"]


def _tokens(code: str) -> Iterator[tuple[str, str, int]]:
    """(kind, text, place) of Jinja's tokens, up to what it does not understand. White space that a tag
    takes away is in none of them."""
    at = 0
    try:
        for _, kind, value in _LEXER.tokeniter(code, None):
            at = code.index(value, at)
            yield kind, value, at
            at += len(value)
    except (TemplateSyntaxError, ValueError):
        return
