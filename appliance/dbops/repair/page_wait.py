"""A VACUUM that waits for a page that somebody else has in use: for how long, and who that may be.

No timeout of PostgreSQL ends such a wait: a cursor that is left open in a transaction can make it last
for ever (`LockBufferForCleanup`, storage/buffer/bufmgr.c). Owns the arithmetic and the words. Never:
looks at a server, or ends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from appliance.dbops.duration import duration
from appliance.dbops.plan.history import Pin, RelationKey
from appliance.dbops.plan.step import Step

NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWait:
    """A wait that was given up, in words, and the transactions that may have caused it."""

    words: str
    pins: tuple[Pin, ...]


class PageWaits:
    """Since when each step waits for one page."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int | None]] = {}

    def seen(self, key: str, *, waits: bool, pages_scanned: int | None, now_s: float) -> float:
        """Seconds for which the step has been seen to wait without going on; 0 when it does not."""
        if not waits:
            self.ended(key)
            return 0.0
        since, pages = self._since.get(key, (now_s, pages_scanned))
        if pages != pages_scanned:
            since = now_s
        self._since[key] = since, pages_scanned
        return now_s - since

    def ended(self, key: str) -> None:
        """It waits no longer."""
        self._since.pop(key, None)


def page_wait(step: Step, waited_s: float, holders: Sequence[asyncpg.Record]) -> PageWait:
    """What is told of a wait that is given up; `holders` are rows of `page_holders`, the oldest first."""
    assert step.database is not None
    assert step.relation_oid is not None
    place = RelationKey(database=step.database, oid=step.relation_oid)
    named = [
        f"pid {row['pid']} ({row['user_name'] or '?'}, {row['application'] or '?'}, {row['state']}; its "
        f"transaction is {duration(row['transaction_s'])} old, its query {duration(row['query_s'])})"
        for row in holders[:NAMED_MAX]
    ]
    who = " or ".join(named) if named else "nobody that can be seen"
    return PageWait(
        words=f"it waited {duration(waited_s)} for a page that is in use by {who}",
        pins=tuple(Pin(place=place, pid=row["pid"], begun=row["begun"]) for row in holders),
    )
