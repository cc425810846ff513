"""What differs between the files of two bundles, as a text to read. Pure; knows no prompt.

A JSON file (a card, a lorebook) is often one line: its fields are compared, each under its path.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator

import msgspec

from appliance.prompt.bundle import Bundle

LINES_MAX = 2000
"""Lines of one difference; the rest is counted."""

_DEPTH_MAX = 32
"""Fields nested deeper are shown as JSON."""


def unified(before: Bundle, after: Bundle) -> str:
    """The files that differ, in the unified form; of files that are no text, their sizes."""
    lines = [line for path in _paths(before, after) for line in _file(before, after, path)]
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"… {len(lines) - LINES_MAX} lines more"]
    return "\n".join(lines)


def _paths(before: Bundle, after: Bundle) -> list[str]:
    paths = before.files.keys() | after.files.keys()
    return sorted(path for path in paths if before.files.get(path) != after.files.get(path))


def _file(before: Bundle, after: Bundle, path: str) -> Iterator[str]:
    old, new = before.files.get(path), after.files.get(path)
    names = (
        "/dev/null" if old is None else f"a/{path}",
        "/dev/null" if new is None else f"b/{path}",
    )
    sizes = f"{len(old or b'')} bytes", f"{len(new or b'')} bytes"
    old_lines, new_lines = _lines(path, old), _lines(path, new)
    if old_lines is None or new_lines is None:
        yield f"{names[0]} {sizes[0]} -> {names[1]} {sizes[1]}"
        return
    found = list(difflib.unified_diff(old_lines, new_lines, *names, lineterm=""))
    what = "how it is written differs" if path.endswith(".json") else "line ends differ"
    yield from found or [f"{names[0]} -> {names[1]}: {what}"]


def _lines(path: str, content: bytes | None) -> list[str] | None:
    """The lines that are compared; None for what is no text."""
    if content is None:
        return []
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if path.endswith(".json"):
        try:
            return list(_fields(msgspec.json.decode(content), "", 0))
        except (msgspec.DecodeError, RecursionError):
            return text.splitlines()
    return text.splitlines()


def _fields(value: object, path: str, depth: int) -> Iterator[str]:
    """`path: value` of every field; a text of several lines has them below its path."""
    if isinstance(value, dict) and value and depth < _DEPTH_MAX:
        for name, item in value.items():
            yield from _fields(item, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, list) and value and depth < _DEPTH_MAX:
        for index, item in enumerate(value):
            yield from _fields(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str) and "\n" in value:
        yield f"{path}:"
        yield from (f"  {line}" for line in value.splitlines())
    else:
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{path}: {shown}"
