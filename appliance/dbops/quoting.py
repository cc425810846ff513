"""Names and values as SQL text, for commands that take no parameters. Pure."""

from __future__ import annotations


def identifier(*parts: str) -> str:
    """A name that may be qualified: `"public"."messages"`."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(text: str) -> str:
    """A string, for sessions with `standard_conforming_strings` on, as it is by default."""
    return "'" + text.replace("'", "''") + "'"
