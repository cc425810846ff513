"""Where the texts of a character's lore go: the choices, and which one is meant where none is made."""

from __future__ import annotations

from enum import StrEnum


class Placement(StrEnum):
    """Where the texts of entries go."""

    FROZEN = "frozen"
    """Right before the message that called them up, for good: the prompt before it stays as it was."""

    AS_WRITTEN = "as_written"
    """Where each entry says, anew in every turn: what follows is computed again."""


DEFAULT_PLACEMENT = Placement.FROZEN
