"""Which pages go where on disk when the engine stops. Never: moves any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Home: TypeAlias = Literal["device", "host", "disk"]
Place: TypeAlias = tuple[Home, int]
Move: TypeAlias = tuple[Home, int, Home, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPage:
    """A page to be written: where its content is, and the slot for it."""

    key: bytes
    source: Place
    slot: int


def plan_save(
    moves: Iterable[Move],
    *,
    host: Sequence[tuple[bytes, int]],
    disk: Sequence[tuple[bytes, int]],
    disk_slots: int,
) -> list[SavedPage]:
    """What to write so that the disk has the most recent pages, the most recent one last.

    `moves` were decided but not carried out, so every content still is where the first of its moves
    begins; `host` and `disk` are the tiers' (key, slot) after them, those that go first first. What is
    on disk is older than all else, and stays in its slot.
    """
    origins: dict[Place, Place] = {}
    for source, number, target, at, _ in moves:
        place: Place = (source, number)
        origins[target, at] = origins.get(place, place)
    pages: list[tuple[bytes, Place]] = [(key, ("disk", slot)) for key, slot in disk]
    pages += [(key, ("host", slot)) for key, slot in host]
    kept = [(key, origins.get(place, place)) for key, place in pages[-disk_slots:]]
    used = {number for _, (tier, number) in kept if tier == "disk"}
    free = (slot for slot in range(disk_slots) if slot not in used)
    return [
        SavedPage(key=key, source=source, slot=next(free))
        for key, source in kept
        if source[0] != "disk"
    ]
