"""Proves that the engine's sequences and the prefix index agree. Never: repairs anything."""

from __future__ import annotations

from collections.abc import Mapping

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.sequence import Sequence, State


def check_engine(
    sequences: Mapping[State, tuple[Sequence, ...]], index: PrefixIndex, page_size: int
) -> None:
    """Raises AssertionError with what is wrong."""
    index.check()
    for sequence in sequences[State.WAITING]:
        assert sequence.lease is None, f"waiting {sequence.key} holds pages"
    active = sequences[State.RUNNING] + sequences[State.CLOSING]
    holders: dict[int, list[Sequence]] = {}
    writers: dict[int, Sequence] = {}
    for sequence in active:
        assert sequence.lease is not None, f"active {sequence.key} holds no pages"
        pages = tokens.unpack(sequence.lease.page_table)
        assert len(set(pages)) == len(pages), f"{sequence.key} holds a page twice"
        assert sequence.computed < sequence.length <= len(pages) * page_size, (
            f"{sequence.key}: {sequence.computed} computed of {sequence.length} tokens "
            f"in {len(pages)} pages"
        )
        for place, page in enumerate(pages):
            holders.setdefault(page, []).append(sequence)
            # From here on the sequence writes; earlier pages are full and may be shared.
            if place >= sequence.computed // page_size:
                writers[page] = sequence
    for page, writer in writers.items():
        assert holders[page] == [writer], f"page {page} is written by {writer.key} and shared"
    if not active:
        leased = index.stats()["pages_leased"]
        assert leased == 0, f"{leased} pages are leased by nobody"
