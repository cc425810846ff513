"""What the prompt registry stores and returns, and the rules for what an operator may write in it.

Values and checks only; owns no connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from appliance.errors import InvalidRequest
from appliance.store.text import storable

PRODUCTION = "production"
"""The label that conversations without a version of their own go by."""

AUTHOR_CHARACTERS_MAX = 200
MESSAGE_CHARACTERS_MAX = 2000
PREFIX_CHARACTERS_MIN = 4
"""Of a version's hash, at least as many say which one is meant."""

_LABEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}\Z")
_HEX = re.compile(r"[0-9a-f]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVersion:
    """A published version of a character; its files are read on their own."""

    name: str
    version: str
    author: str
    message: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Where a label of a character stands; a protected one moves only when it is named once more."""

    name: str
    label: str
    version: str
    protected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMove:
    """One entry of the history of labels. `from_version` is None where the label was made."""

    name: str
    label: str
    from_version: str | None
    to_version: str
    protected: bool
    author: str
    message: str
    moved_at: datetime


def checked_label(label: str) -> str:
    """The name of a label; raises InvalidRequest for one that is unsafe or looks like a version."""
    if _LABEL.match(label) is None:
        raise InvalidRequest(
            f"label: {label!r} is not 1 to 64 of a-z 0-9 _ . - that begin with a letter",
            param="label",
        )
    if _HEX.match(label) is not None:
        raise InvalidRequest(
            f"label: {label!r} reads like the beginning of a version; add another letter",
            param="label",
        )
    return label


def is_prefix(reference: str) -> bool:
    """Whether a reference means a version by the beginning of its hash, not a label."""
    return _HEX.match(reference) is not None


def checked_author(author: str) -> str:
    """Who does something; raises InvalidRequest."""
    return _checked("author", author, AUTHOR_CHARACTERS_MAX)


def checked_message(message: str) -> str:
    """Why it is done; raises InvalidRequest."""
    return _checked("message", message, MESSAGE_CHARACTERS_MAX)


def _checked(field: str, text: str, characters_max: int) -> str:
    text = text.strip()
    if not text:
        raise InvalidRequest(f"{field}: is empty", param=field)
    if len(text) > characters_max:
        raise InvalidRequest(
            f"{field}: at most {characters_max} characters, this one has {len(text)}", param=field
        )
    return storable(text)


def read_version(row: asyncpg.Record) -> PromptVersion:
    """A row of the version columns as a value."""
    return PromptVersion(
        name=row["name"],
        version=row["version"],
        author=row["author"],
        message=row["message"],
        created_at=row["created_at"],
    )


def read_label(row: asyncpg.Record) -> Label:
    """A row of the label columns as a value."""
    return Label(
        name=row["name"], label=row["label"], version=row["version"], protected=row["protected"]
    )


def read_move(row: asyncpg.Record) -> LabelMove:
    """A row of the columns of moves as a value."""
    return LabelMove(
        name=row["name"],
        label=row["label"],
        from_version=row["from_version"],
        to_version=row["to_version"],
        protected=row["protected"],
        author=row["author"],
        message=row["message"],
        moved_at=row["moved_at"],
    )
