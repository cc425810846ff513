"""Situations in which something old holds the horizon, so that VACUUM may not freeze what it could."""

from __future__ import annotations

from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.situation import Situation
from appliance.dbops.plan.step import Consent


class Prepared(Situation):
    """Between PREPARE and COMMIT for two billion XIDs."""

    name = "prepared"
    summary = "a prepared transaction that nobody ever finished"
    holds_back = True
    gid = "forgotten transfer"
    consents = frozenset({Consent.PREPARED_COMMIT})
    changes = frozenset({'app."public"."pending"'})

    async def plant(self, drill: Drill) -> None:
        """Leave it with one row."""
        await drill.prepare(self.gid)


class LogicalSlot(Situation):
    """Its `catalog_xmin` never moves."""

    name = "logical-slot"
    summary = "a logical replication slot whose consumer is gone: catalogs cannot be frozen"
    holds_back = True
    slot = "dead_consumer"
    consents = frozenset({Consent.SLOT})

    async def plant(self, drill: Drill) -> None:
        """Make the slot; nobody reads from it."""
        await drill.value(
            f"SELECT pg_create_logical_replication_slot('{self.slot}', 'test_decoding')::text"
        )


class PhysicalSlot(Situation):
    """Its `xmin` is what a standby asked for last."""

    name = "physical-slot"
    summary = "a physical replication slot of a standby that is gone, with its last feedback"
    holds_back = True
    slot = "dead_standby"
    consents = frozenset({Consent.SLOT})

    async def plant(self, drill: Drill) -> None:
        """Make the slot, and be its standby for a moment."""
        await drill.value(f"SELECT pg_create_physical_replication_slot('{self.slot}', true)::text")
        standby = await drill.standby(xmin=await drill.oldest_xid(), slot=self.slot)
        await drill.wait_until(
            f"SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )
        await standby.close()


class StandbyFeedback(Situation):
    """`hot_standby_feedback` without a slot."""

    name = "standby"
    summary = "a standby whose feedback asks for rows of long ago; it reconnects when it is cut off"
    consents = frozenset({Consent.STANDBY})

    async def stopped(self, drill: Drill) -> None:
        """Connect as a standby whose oldest query is as old as everything."""
        self.actor = await drill.standby(xmin=await drill.oldest_xid())


class InheritedHorizon(Situation):
    """A session of the last days that is given today's horizon: it could not outlive the way there."""

    async def plant(self, drill: Drill) -> None:
        """Keep it."""
        await drill.pin(f"pin of {self.name}")


class IdleInTransaction(InheritedHorizon):
    """It has read, and keeps its snapshot."""

    name = "idle"
    summary = "a session idle in a transaction that it began two billion transactions ago"
    holds_back = True
    application = "forgotten report"
    consents = frozenset({Consent.SESSION})

    async def warm(self, drill: Drill) -> None:
        """Begin, and read."""
        await drill.session(
            self.application,
            "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "SELECT count(*) FROM messages",
        )


class LongQuery(InheritedHorizon):
    """An active session with a snapshot as old as everything."""

    name = "long-query"
    summary = "a query that has been running for two billion transactions"
    holds_back = True
    application = "endless report"
    consents = frozenset({Consent.SESSION})

    async def warm(self, drill: Drill) -> None:
        """Begin the query, and wait until it runs."""
        session = await drill.session(self.application)
        session.begin_query("SELECT count(*), pg_sleep(86400) FROM messages")
        await drill.wait_until(
            "SELECT backend_xmin IS NOT NULL AND wait_event = 'PgSleep' FROM pg_stat_activity "
            f"WHERE pid = {session.pid}"
        )
