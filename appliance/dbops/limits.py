"""PostgreSQL's limits on transaction IDs and multixacts, and how near a number is to them. Pure.

The same in 14 to 18: `SetTransactionIdLimit` (access/transam/varsup.c), `SetMultiXactIdLimit` and
`SetOffsetVacuumLimit` (access/transam/multixact.c). Never: reads a server.
"""

from __future__ import annotations

from enum import IntEnum

ID_SPACE = 2**32
"""Transaction IDs and multixact IDs are counted modulo this."""

WRAP_AGE = 2**31 - 1
"""At this age an ID could no longer be told from a future one."""

STOP_MARGIN = 3_000_000
WARN_MARGIN = 40_000_000
STOP_AGE = WRAP_AGE - STOP_MARGIN
"""From this XID age (and MXID age) of the oldest database on, no ID is given out."""

WARN_AGE = WRAP_AGE - WARN_MARGIN
"""From here on the server logs a warning for every ID it gives out."""

MEMBERS_PER_SEGMENT = 52_352
"""Members in a file of `pg_multixact/members`: 32 pages of 8,192 bytes, 409 groups a page, 4 a group."""

MEMBERS_MAX = ID_SPACE - MEMBERS_PER_SEGMENT
"""Members in use at which new multixacts are refused: a segment before the oldest is kept free."""

MEMBER_SEGMENTS = -(-ID_SPACE // MEMBERS_PER_SEGMENT)
"""Files that the whole member space takes; the last one is cut short."""

MEMBERS_UNCERTAIN = 2 * MEMBERS_PER_SEGMENT
"""What is in use is known to a file, and the newest file may still lie in the server's buffers."""


class Stage(IntEnum):
    """How far a cluster has gone on the way to the stop, the worst last."""

    OK = 0
    LAGGING = 1
    """Older than autovacuum should let it become: it does not keep up, or something holds it back."""
    FAILSAFE = 2
    """Vacuum gives up everything but freezing (`vacuum_failsafe_age`)."""
    WARN = 3
    """Fewer than 37 million IDs are left; each one that is given out logs a warning."""
    STOPPED = 4
    """Commands that need an ID are refused."""


LAGGING_FACTOR = 1.2
"""Tables reach `autovacuum_freeze_max_age` in health too, and are vacuumed then; a fifth later they
should have been."""


def stage_of_age(age: int, *, freeze_age_max: int, failsafe_age: int) -> Stage:
    """The stage of an XID age or MXID age under a cluster's two settings for it."""
    if age >= STOP_AGE:
        return Stage.STOPPED
    if age >= WARN_AGE:
        return Stage.WARN
    if age >= failsafe_age:
        return Stage.FAILSAFE
    return Stage.LAGGING if age > LAGGING_FACTOR * freeze_age_max else Stage.OK


def stage_of_members(members_used: int) -> Stage:
    """The stage of the member space, whose marks are fixed (`MultiXactMemberFreezeThreshold`).

    Above half of it autovacuum freezes earlier the more is used, above three quarters at any age.
    """
    if members_used >= MEMBERS_MAX - MEMBERS_UNCERTAIN:
        return Stage.STOPPED
    if members_used >= MEMBERS_MAX - 20 * MEMBERS_PER_SEGMENT:
        return Stage.WARN
    if members_used >= ID_SPACE // 4 * 3:
        return Stage.FAILSAFE
    return Stage.LAGGING if members_used > LAGGING_FACTOR * (ID_SPACE // 2) else Stage.OK
