"""What a run did that a snapshot does not show. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationKey:
    """A relation by where it is."""

    database: str
    oid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A transaction that may have in use a page for which a VACUUM of a relation waited in vain."""

    place: RelationKey
    pid: int
    begun: datetime
    """By the server's clock: tells the transaction from a later one of the same session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What earlier plans of a run did, where a snapshot does not show it."""

    settled: frozenset[str] = frozenset()
    """Keys of steps that are not to be taken again: done, failed for good, or not agreed to."""
    frozen: frozenset[RelationKey] = frozenset()
    """Relations whose index cleanup was left out and is still to be made up for."""
    damaged: frozenset[RelationKey] = frozenset()
    """Relations in which a VACUUM met a page that cannot be read."""
    without_file: frozenset[RelationKey] = frozenset()
    """Relations of which a VACUUM found a file missing."""
    bad_rows: frozenset[RelationKey] = frozenset()
    """Relations with a row that VACUUM refuses: its IDs cannot be right."""
    bad_values: frozenset[RelationKey] = frozenset()
    """Relations with a long value that cannot be read."""
    bad_indexes: frozenset[RelationKey] = frozenset()
    """Relations in whose indexes a repair met damage, or whose rebuilding was broken off."""
    given_up: frozenset[RelationKey] = frozenset()
    """Relations of which pages were given up and whose indexes still lead to the rows that were there."""
    under_lock: Mapping[RelationKey, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Of relations of the last two kinds: indexes, as SQL, that cannot be built beside writes."""
    pins: frozenset[Pin] = frozenset()
    refused: bool = False
    """Whether the server refuses IDs although every database is young: it goes by an older count."""
    rate_bytes_per_s: float | None = None
    """Measured; None before anything large was frozen."""
