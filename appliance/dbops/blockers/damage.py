"""Damage that makes a VACUUM fail, as it is known from a probe, a log or a step that failed.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DamageKind(StrEnum):
    """What cannot be read."""

    PAGE = "page"
    ROW = "row"
    """A row with an ID that cannot be right."""
    VALUE = "value"
    """A long value of a row, of which a part is not there or cannot be read."""
    INDEX = "index"
    FILE = "file"
    """It is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A relation of which something cannot be read; `index` names it where it is one of its indexes."""

    kind: DamageKind
    database: str
    relation_oid: int
    schema: str
    relation: str
    index: str | None
    block: int | None
    message: str
