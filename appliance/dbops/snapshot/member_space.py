"""How much of the space for multixact members is in use, from the files it lies in. Pure.

PostgreSQL 14 to 18 tell no number, and an age in multixact IDs says nothing of it: a multixact has any
number of members. The files are a ring; between the newest and the oldest there is always a gap.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.dbops.limits import ID_SPACE, MEMBER_SEGMENTS, MEMBERS_PER_SEGMENT
from appliance.dbops.snapshot.snapshot import MemberSpace


def member_space(names: Iterable[str], next_offset: int) -> MemberSpace:
    """The space in use by the files of `pg_multixact/members` (hexadecimal numbers).

    `next_offset` is the next member's position at the newest checkpoint: files that follow its own in a
    row are newer, and the next one after a gap is the oldest.
    """
    segments = {int(name, 16) for name in names if _is_segment(name)}
    newest = next_offset // MEMBERS_PER_SEGMENT
    segments.add(newest)
    for _ in range(len(segments)):
        following = (newest + 1) % MEMBER_SEGMENTS
        if following not in segments:
            break
        newest = following
    # Counted upwards from the newest, around the ring: the first file that comes is the oldest.
    oldest = min(segments, key=lambda number: (number - newest - 1) % MEMBER_SEGMENTS)
    count = (newest - oldest) % MEMBER_SEGMENTS + 1
    return MemberSpace(
        used=min(ID_SPACE, count * MEMBERS_PER_SEGMENT),
        next_offset=next_offset,
    )


def _is_segment(name: str) -> bool:
    return 4 <= len(name) <= 6 and all(letter in "0123456789ABCDEF" for letter in name)
