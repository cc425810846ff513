"""Names and values as SQL text, for commands that take no parameters. Pure."""

from __future__ import annotations

from shlex import quote


def identifier(*parts: str) -> str:
    """A name that may be qualified: `"public"."messages"`."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def literal(text: str) -> str:
    """A string, for sessions with `standard_conforming_strings` on, as it is by default."""
    return "'" + text.replace("'", "''") + "'"


def single_user_command(statement: str, *, folder: str, database: str) -> str | None:
    """A shell command that gives a statement to a server in single-user mode.

    None where a line break in a name would begin a statement of its own there.
    """
    if "\n" in statement or "\n" in database:
        return None
    return f"printf '%s\\n' {quote(statement)} | postgres --single -D {quote(folder)} {quote(database)}"
