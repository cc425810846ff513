"""Where the messages of a prompt come from: explanations go by it, as names may repeat. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SourceKind(Enum):
    """What a text of a prompt is."""

    PART = "part"
    """A part of the character's template."""

    PERSONA = "persona"
    """A part that says who the user is, and nothing else."""

    NOTE = "note"
    """An author's note."""

    PINNED = "pinned"
    """A text that the user has pinned."""

    LORE = "lore"
    """An entry of a lorebook."""

    MESSAGE = "message"
    """A message of the conversation."""

    FORMAT = "format"
    """What the model's chat format wants besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a text.

    `id` is a message's id, the name of a part, the digest of a lorebook's entry. `of` is the id of the
    message that lore or a note was written down for, None where it stands for itself.
    """

    kind: SourceKind
    id: str
    of: str | None = None


REPLY_HEADER = Source(kind=SourceKind.FORMAT, id="reply header")
STAND_IN = Source(kind=SourceKind.FORMAT, id="opening")
"""The user's message that a strict format wants first."""

LEADS = frozenset({SourceKind.LORE, SourceKind.NOTE})
"""What stands before a message and is none itself."""
