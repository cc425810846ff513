"""Situations in which a VACUUM would wait for a lock for ever."""

from __future__ import annotations

from appliance.dbops.drill.drill import DATABASE, Drill
from appliance.dbops.drill.situation import Situation
from appliance.dbops.plan.step import Consent

LOCK = "LOCK TABLE messages IN SHARE UPDATE EXCLUSIVE MODE"


class EndlessLock(Situation):
    """The lock that VACUUM takes itself."""

    name = "lock"
    summary = "a session holds a lock on a large table and is idle in its transaction"
    application = "stuck migration"
    holds_back = True
    consents = frozenset({Consent.LOCK})

    async def stopped(self, drill: Drill) -> None:
        """Take it, and never end."""
        self.holder = await drill.session(self.application, "BEGIN", LOCK)


class PreparedLock(Situation):
    """A lock that no session holds."""

    name = "prepared-lock"
    summary = "a young prepared transaction holds a lock on a large table"
    gid = "half a migration"
    holds_back = True
    consents = frozenset({Consent.PREPARED_COMMIT})

    async def warm(self, drill: Drill) -> None:
        """Take it and prepare the transaction."""
        await drill.execute_each(DATABASE, "BEGIN", LOCK, f"PREPARE TRANSACTION '{self.gid}'")


class MiddleAged(Situation):
    """Whoever has the lock holds a horizon too, half as old as the tables: too young to be in the way of
    writes by that, and older than stage 2 lets anything become."""

    kept_old = frozenset({DATABASE})


class MiddleAgedLock(MiddleAged):
    """It inherits the horizon of halfway: no session outlives the way from there."""

    name = "old-lock"
    summary = "a session idle in a transaction since a billion transactions ago locks a large table"
    consents = frozenset({Consent.LOCK})

    async def halfway(self, drill: Drill) -> None:
        """Keep the horizon."""
        await drill.pin(f"pin of {self.name}")

    async def warm(self, drill: Drill) -> None:
        """Take the lock with a snapshot as old as that."""
        await drill.session(
            "migration left open",
            "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "SELECT count(*) FROM pending",
            LOCK,
        )


class MiddleAgedPreparedLock(MiddleAged):
    """A lock that no session holds."""

    name = "old-prepared-lock"
    gid = "a migration begun"
    summary = "a prepared transaction of a billion transactions ago locks a large table"
    consents = frozenset({Consent.PREPARED_COMMIT})

    async def halfway(self, drill: Drill) -> None:
        """Take it and prepare the transaction."""
        await drill.execute_each(DATABASE, "BEGIN", LOCK, f"PREPARE TRANSACTION '{self.gid}'")
