"""Numbers, JSON and foreign text as commands print them. Pure."""

from __future__ import annotations

import json
import textwrap
from datetime import UTC, datetime

WIDTH = 100
"""Letters of a line of prose on a screen."""


def as_json(value: object) -> str:
    """One JSON value for a program, or a person, to read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def when(time: str) -> str:
    """A time that an answer holds in ISO 8601, to the minute and in UTC."""
    moment = datetime.fromisoformat(time.replace("Z", "+00:00")).astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def percent(part: float, whole: float) -> str:
    """A share, or `none` of nothing."""
    return f"{part / whole:.1%}" if whole else "none"


def size(count: float) -> str:
    """Bytes in the largest fitting unit."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def indented(text: str, spaces: int) -> list[str]:
    """Prose in lines of at most WIDTH letters; a word that is longer keeps its line."""
    blank = " " * spaces
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=blank,
        subsequent_indent=blank,
        break_long_words=False,
        break_on_hyphens=False,
    )


def visible(text: str) -> str:
    """The text with control characters written out: a terminal shall not obey them."""
    return "".join(
        letter if letter in "\n\t\N{NO-BREAK SPACE}" or letter.isprintable() else repr(letter)[1:-1]
        for letter in text
    )
