"""What a situation is: what it does at each station on a cluster's way into the stop. Drives nothing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from appliance.dbops.plan.step import Consent

if TYPE_CHECKING:
    from appliance.dbops.drill.drill import Drill


class Counter(Enum):
    """What runs out."""

    XIDS = "transaction IDs"
    MULTIXACTS = "multixact IDs"
    MEMBERS = "space for multixact members"


class Situation:
    """Nothing but old tables; a named situation overrides the stations it needs.

    The way: `plant` (the cluster is new), `loaded` (its rows are there), then, where `kept_old` names
    databases, `halfway` (a billion XIDs later, all others just frozen), `cold` (stopped, its counter near
    the limit), `warm` (the last IDs are left), `stopped` (no ID is left).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for an operator: what is wrong."""

    counter: Counter = Counter.XIDS
    kept_old: frozenset[str] = frozenset()
    """The only databases that age the whole way; empty: all do."""

    holds_back = False
    """Whether freezing all the rest must win nothing: everything is frozen to one XID after `plant`."""

    consents: frozenset[Consent] = frozenset()
    """What has to be agreed to by name before a repair can bring writes back."""

    single_user = False
    """Whether only single-user mode helps: the server is restarted for it."""

    changes: frozenset[str] = frozenset()
    """Tables (`database."schema"."table"`) whose rows a repair changes: it finishes something or gives it
    up."""

    async def plant(self, drill: Drill) -> None:
        """The cluster is new and empty: leave what will grow old."""

    async def loaded(self, drill: Drill) -> None:
        """The application's rows are there."""

    async def halfway(self, drill: Drill) -> None:
        """Everything but `kept_old` has just been frozen."""

    async def cold(self, drill: Drill) -> None:
        """The server is down."""

    async def warm(self, drill: Drill) -> None:
        """Some thousand IDs are left."""

    async def stopped(self, drill: Drill) -> None:
        """Commands that need an ID are refused from now on."""


class Together(Situation):
    """Several situations in one cluster, each at its station in the order given."""

    def __init__(self, *parts: Situation) -> None:
        self._parts = parts
        self.holds_back = any(part.holds_back for part in parts)
        self.single_user = any(part.single_user for part in parts)
        self.consents = frozenset().union(*(part.consents for part in parts))
        self.changes = frozenset().union(*(part.changes for part in parts))
        assert all(part.counter is Counter.XIDS and not part.kept_old for part in parts)

    async def plant(self, drill: Drill) -> None:
        """Each part\'s."""
        for part in self._parts:
            await part.plant(drill)

    async def loaded(self, drill: Drill) -> None:
        """Each part\'s."""
        for part in self._parts:
            await part.loaded(drill)

    async def cold(self, drill: Drill) -> None:
        """Each part\'s."""
        for part in self._parts:
            await part.cold(drill)

    async def warm(self, drill: Drill) -> None:
        """Each part\'s."""
        for part in self._parts:
            await part.warm(drill)

    async def stopped(self, drill: Drill) -> None:
        """Each part\'s."""
        for part in self._parts:
            await part.stopped(drill)
