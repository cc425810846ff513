"""Every situation by its name. Never: what one of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from appliance.dbops.drill.damage import DamagedIndex, DamagedPage, UnfrozenRow
from appliance.dbops.drill.databases import (
    ClosedDatabase,
    OtherDatabase,
    StaleDatfrozenxid,
    Template0,
)
from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.horizon import (
    IdleInTransaction,
    LogicalSlot,
    LongQuery,
    PhysicalSlot,
    Prepared,
    StandbyFeedback,
)
from appliance.dbops.drill.locks import (
    EndlessLock,
    MiddleAgedLock,
    MiddleAgedPreparedLock,
    PreparedLock,
)
from appliance.dbops.drill.multixacts import MemberSpace, MultixactIds
from appliance.dbops.drill.situation import Situation, Together
from appliance.dbops.drill.temporary import LiveTemp, OrphanedTemp
from appliance.errors import NotFound


class Plain(Situation):
    """What is left when autovacuum was off for years."""

    name = "plain"
    summary = "every table is old and nothing stands in the way"


class Foreign(Situation):
    """Extensions cannot be made any more in the stop."""

    name = "foreign"
    summary = "a PostgreSQL that was set up without this tool: none of the extensions are there"

    async def plant(self, drill: Drill) -> None:
        """Drop what `init` creates."""
        await drill.execute("DROP EXTENSION amcheck, pageinspect, pg_surgery, pg_visibility")


class Several(Together):
    """Each of them alone would keep the cluster stopped."""

    name = "several"
    summary = (
        "a prepared transaction, two slots, an idle session, a lock and a damaged index at once"
    )

    def __init__(self) -> None:
        super().__init__(
            # A logical slot waits for the transactions that run when it is made.
            LogicalSlot(),
            PhysicalSlot(),
            Prepared(),
            IdleInTransaction(),
            DamagedIndex(),
            EndlessLock(),
        )


_ALL: tuple[type[Situation], ...] = (
    Plain,
    Foreign,
    Prepared,
    LogicalSlot,
    PhysicalSlot,
    StandbyFeedback,
    IdleInTransaction,
    LongQuery,
    OrphanedTemp,
    LiveTemp,
    Template0,
    OtherDatabase,
    ClosedDatabase,
    StaleDatfrozenxid,
    MultixactIds,
    MemberSpace,
    DamagedPage,
    DamagedIndex,
    UnfrozenRow,
    EndlessLock,
    PreparedLock,
    MiddleAgedLock,
    MiddleAgedPreparedLock,
    Several,
)

SITUATIONS: Mapping[str, Callable[[], Situation]] = MappingProxyType(
    {kind.name: kind for kind in _ALL}
)
"""What makes a situation, by its name; in the order of the operator's list."""

SUMMARIES: Mapping[str, str] = MappingProxyType({kind.name: kind.summary for kind in _ALL})


def situation(name: str) -> Situation:
    """A new situation of this name. Raises NotFound."""
    make = SITUATIONS.get(name)
    if make is None:
        raise NotFound(f"there is no situation {name}: `appliance db drill --list` names them all")
    return make()
