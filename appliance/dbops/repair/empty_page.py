"""An empty page of a table, as PostgreSQL 14 to 18 lay it out and check it. Pure.

Owns the header's bytes (storage/bufpage.h) and the checksum (storage/checksum_impl.h). Never: reads or
writes a file.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 24
LAYOUT_VERSION = 4
ALL_VISIBLE = 0x0004
"""`PD_ALL_VISIBLE`: nothing on it that anybody could not see."""

_PRIME = 16_777_619  # of Fowler, Noll and Vo's hash (FNV-1a)
_SUMS = (
    *(0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C),
    *(0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB),
    *(0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4),
    *(0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756),
)  # fmt: skip


def empty_page(page_bytes: int, block: int, *, little_endian: bool) -> bytes:
    """A page without a row, marked as visible to all, with the checksum of its place.

    A page of zeros can be read too, but a row that is put there later would not take the page's bit out
    of the visibility map: an index-only scan would go on taking for visible whatever comes there. This
    one gives the bit up with its first row, and is no worse where the bit is not set.
    """
    order = "<" if little_endian else ">"

    def page(checksum: int) -> bytes:
        header = struct.pack(
            f"{order}QHHHHHHI",
            *(0, checksum, ALL_VISIBLE, HEADER_BYTES, page_bytes, page_bytes),
            *(page_bytes | LAYOUT_VERSION, 0),
        )
        return header.ljust(page_bytes, b"\0")

    return page(page_checksum(page(0), block, little_endian=little_endian))


def page_checksum(page: bytes, block: int, *, little_endian: bool) -> int:
    """The checksum of a page whose own field for it is zero; `block` counts from the table's start."""
    words = struct.unpack(f"{'<' if little_endian else '>'}{len(page) // 4}I", page)
    sums = list(_SUMS)
    for number, word in enumerate((*words, *(0,) * (2 * len(sums)))):
        place = number % len(sums)
        mixed = sums[place] ^ word
        sums[place] = (mixed * _PRIME & 0xFFFFFFFF) ^ (mixed >> 17)
    folded = block
    for one in sums:
        folded ^= one
    return folded % 65_535 + 1
