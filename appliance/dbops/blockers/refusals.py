"""What keeps a server from writes although nothing of it is old: whoever it waits for, and its own count.

Pure. Never: counts a standby that may not be seen as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.dbops import remedies
from appliance.dbops.blockers.blocker import Action, ActionForm, Blocker, BlockerKind, Reach
from appliance.dbops.limits import STOP_AGE, Stage
from appliance.dbops.snapshot.snapshot import Database, Snapshot

_NAMES = re.compile(r"\s*(?:(?:first|any)\s+)?(?P<count>\d+)\s*\(", re.IGNORECASE)
"""`FIRST n (…)`, `ANY n (…)` or `n (…)`; a list alone asks for one."""

_WAITED_FOR = frozenset({"sync", "quorum"})


def absent_standbys(snapshot: Snapshot) -> Iterator[Blocker]:
    """Commits that wait for more standbys than there are: without end, and no timeout ends them."""
    names = snapshot.settings.get("synchronous_standby_names", "")
    states = [standby.sync_state for standby in snapshot.standbys]
    is_seen = None not in states and all(one.part != "standbys" for one in snapshot.missing)
    if not names.strip() or snapshot.in_recovery or not is_seen:
        return
    found = _NAMES.match(names)
    needed = 1 if found is None else int(found["count"])
    there = sum(state in _WAITED_FOR for state in states)
    if there >= needed:
        return
    yield Blocker(
        kind=BlockerKind.SYNCHRONOUS_STANDBY,
        id=f"synchronous_standby_names = {names}",
        age=None,
        stage=Stage.STOPPED,
        reach=Reach(),
        detail=f"each commit waits for {needed} of these standbys, and {there} are connected",
        since_s=None,
        actions=(
            Action(
                form=ActionForm.SQL,
                text="ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
                database=None,
                consequence="what waits is committed at once, on this machine alone until the standby is "
                "back; better, if it takes minutes only: bring the standby back",
            ),
        ),
    )


def stale_limits(snapshot: Snapshot) -> Iterator[Blocker]:
    """A server that refuses IDs by a count that did not follow its databases.

    It gives out none from that age on, so an age beyond it says that it has counted anew since.
    """
    counted = snapshot.counted
    if counted is None or snapshot.in_recovery:
        return
    if counted.xid_age == STOP_AGE and snapshot.xid_age < STOP_AGE:
        yield _stale(
            snapshot,
            "transaction IDs",
            remedies.count_database_age(snapshot.major),
            None,
            "has the server count anew; takes no XID",
        )
    if is_multixact_limit_stale(snapshot):
        yield _stale(
            snapshot,
            "multixact IDs",
            remedies.freeze_database(),
            smallest_database(snapshot),
            "the server counts multixacts anew when any database becomes younger: this is the smallest",
        )


def is_multixact_limit_stale(snapshot: Snapshot) -> bool:
    """Whether multixacts are refused by an old count, which no VACUUM renews that makes no database
    younger (`vac_update_datfrozenxid`, commands/vacuum.c)."""
    counted = snapshot.counted
    return counted is not None and counted.mxid_age == STOP_AGE and snapshot.mxid_age < STOP_AGE


def smallest_database(snapshot: Snapshot) -> Database | None:
    """The one that is vacuumed soonest; None where none was looked into."""
    seen = [one for one in snapshot.databases if one.connectable and one.relations]
    return min(seen, key=lambda one: sum(r.pages for r in one.relations or ()), default=None)


def _stale(
    snapshot: Snapshot, what: str, statement: str, database: Database | None, consequence: str
) -> Blocker:
    return Blocker(
        kind=BlockerKind.STALE_LIMIT,
        id=what,
        age=None,
        stage=Stage.STOPPED,
        reach=Reach(),
        detail="every database is young enough, and the server refuses all the same: a VACUUM was broken "
        "off before it told the server",
        since_s=None,
        actions=(
            Action(
                form=ActionForm.SQL,
                text=f"{statement};",
                database=None if database is None else database.name,
                consequence=consequence,
            ),
        ),
    )
