"""A number of things in words. Pure."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """How many of what: 1 part, 2 parts; `plural` where it is not the noun and an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
