"""Token ids as packed buffers: `bytes` of little-endian u32, the one form that crosses every seam."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

TokenIds: TypeAlias = bytes
"""Packed token ids: 4 bytes each, little-endian u32."""

BYTES_PER_TOKEN = 4


def pack(token_ids: Iterable[int]) -> TokenIds:
    """Pack ids; raises OverflowError for an id outside u32."""
    return array("I", token_ids).tobytes()


def unpack(token_ids: TokenIds) -> Sequence[int]:
    """A view of the ids as integers; copies nothing."""
    return memoryview(token_ids).cast("I")


def count(token_ids: TokenIds) -> int:
    """How many ids the buffer holds."""
    assert len(token_ids) % BYTES_PER_TOKEN == 0
    return len(token_ids) // BYTES_PER_TOKEN


def head(token_ids: TokenIds, tokens: int) -> TokenIds:
    """The first `tokens` ids."""
    return token_ids[: tokens * BYTES_PER_TOKEN]


def tail(token_ids: TokenIds, skipped: int) -> TokenIds:
    """The ids after the first `skipped`."""
    return token_ids[skipped * BYTES_PER_TOKEN :]


def common(first: TokenIds, second: TokenIds) -> int:
    """How many ids two buffers begin with alike: by halves, as comparing bytes is far faster than ids."""
    low, high = 0, min(count(first), count(second))
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * BYTES_PER_TOKEN, middle * BYTES_PER_TOKEN
        # What is before `low` is alike.
        if first[start:end] == second[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
