"""What keeps a cluster's transaction IDs from being freed: a snapshot in, every blocker out. Pure.

Owns which of them are worth telling, and their order. Never: removes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.dbops.blockers import laggards, obstacles, refusals
from appliance.dbops.blockers.blocker import Blocker, BlockerKind
from appliance.dbops.blockers.damage import Damage
from appliance.dbops.blockers.holders import holders
from appliance.dbops.limits import LAGGING_FACTOR, Stage
from appliance.dbops.snapshot.rates import Rate
from appliance.dbops.snapshot.snapshot import AgeMin, Snapshot

_ORDER = {kind: place for place, kind in enumerate(BlockerKind)}
_EFFECTS = (
    BlockerKind.STALE_DATFROZENXID,
    BlockerKind.OLD_DATABASE,
    BlockerKind.UNCONNECTABLE_DATABASE,
)
_RATES = (
    BlockerKind.AUTOVACUUM_OFF,
    BlockerKind.AUTOVACUUM_STARVED,
    BlockerKind.BURN_RATE,
    BlockerKind.MEMBER_SPACE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """From when on something is worth telling.

    What holds the horizon is told from an age in XIDs on, or when it has lasted for some time: long
    before it does harm. Databases and single relations are told from `relation_age_min` on; None: from
    where autovacuum should have vacuumed them.
    """

    xid_age_min: int = 10_000_000
    relation_age_min: int | None = None
    idle_s_min: float = 300.0
    transaction_s_min: float = 3600.0
    prepared_s_min: float = 300.0

    def old(self, snapshot: Snapshot) -> AgeMin:
        """The ages from which on databases and relations are told."""
        if self.relation_age_min is None:
            return due_age(snapshot)
        return AgeMin(xid=self.relation_age_min, mxid=self.relation_age_min)


def blockers(
    snapshot: Snapshot,
    watch: Watch = Watch(),
    *,
    rate: Rate | None = None,
    damages: Sequence[Damage] = (),
) -> tuple[Blocker, ...]:
    """Every blocker, the one that holds the cluster back most first."""
    age_min = watch.old(snapshot)
    found = [
        *(holder for holder in holders(snapshot) if _is_told(holder, watch)),
        *obstacles.temp_tables(snapshot, age_min),
        *obstacles.locks(snapshot, age_min),
        *obstacles.damaged(snapshot, damages),
        *refusals.absent_standbys(snapshot),
        *refusals.stale_limits(snapshot),
        *laggards.old_databases(snapshot, age_min),
        *laggards.autovacuum(snapshot, age_min),
        *laggards.burn_rate(snapshot, rate),
        *laggards.member_space(snapshot),
    ]
    return tuple(sorted(found, key=_rank))


def due_age(snapshot: Snapshot) -> AgeMin:
    """From here on autovacuum is at fault: the stage of such an age is LAGGING."""
    return AgeMin(
        xid=int(LAGGING_FACTOR * snapshot.setting_int("autovacuum_freeze_max_age")),
        mxid=int(LAGGING_FACTOR * snapshot.setting_int("autovacuum_multixact_freeze_max_age")),
    )


def _is_told(holder: Blocker, watch: Watch) -> bool:
    if (holder.age or 0) >= watch.xid_age_min:
        return True
    since_s = holder.since_s or 0.0
    match holder.kind:
        case BlockerKind.IDLE_IN_TRANSACTION:
            return since_s >= watch.idle_s_min
        case BlockerKind.PREPARED_TRANSACTION:
            return since_s >= watch.prepared_s_min
        case BlockerKind.LOGICAL_SLOT | BlockerKind.PHYSICAL_SLOT:
            return holder.pid is None  # Nobody reads it: told at any age.
        case BlockerKind.LONG_TRANSACTION:
            return since_s >= watch.transaction_s_min and not holder.automatic
        case _:
            return False


def _rank(blocker: Blocker) -> tuple[int, int, int, int, str]:
    """What is gravest first; of equally grave ones causes before effects, and then the oldest.

    The stop is not told from the last millions before it: what holds a cluster there is as grave.
    """
    stage = min(blocker.stage, Stage.WARN)
    tier = 2 if blocker.kind in _EFFECTS else 1 if blocker.kind in _RATES else 0
    return (-stage, tier, -(blocker.age or 0), _ORDER[blocker.kind], blocker.id)
