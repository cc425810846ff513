"""What differs between the files of two bundles, as a text to read. Pure; knows no prompt."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from appliance.prompt.bundle import Bundle

LINES_MAX = 2000
"""Lines of one difference; the rest is counted."""


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
    try:
        old_lines = (old or b"").decode().splitlines()
        new_lines = (new or b"").decode().splitlines()
    except UnicodeDecodeError:
        yield f"{names[0]} {len(old or b'')} bytes -> {names[1]} {len(new or b'')} bytes"
        return
    found = list(difflib.unified_diff(old_lines, new_lines, *names, lineterm=""))
    yield from found or [f"{names[0]} -> {names[1]}: line ends differ"]
