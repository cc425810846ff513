"""Situations with an old temporary table, which only its owner could freeze."""

from __future__ import annotations

import os
import signal

from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.horizon import InheritedHorizon
from appliance.dbops.drill.situation import Situation
from appliance.dbops.plan.step import Consent

SCRATCH = (
    "CREATE TEMPORARY TABLE scratch AS "
    "SELECT n, repeat('y', 3000) AS body FROM generate_series(1, 200) AS n"
)


class OrphanedTemp(Situation):
    """Made before a crash of the server, which does not remove it."""

    name = "orphan"
    summary = "an old temporary table whose session was killed: no VACUUM may touch it"
    holds_back = True
    consents = frozenset({Consent.SINGLE_USER})
    single_user = True

    async def plant(self, drill: Drill) -> None:
        """Make the table and kill its session's process."""
        owner = await drill.session("killed importer", SCRATCH)
        witness = await drill.session("witness")
        os.kill(owner.pid, signal.SIGKILL)
        # The server ends every session when one of them dies, and recovers.
        await drill.wait_for_recovery(witness)


class LiveTemp(InheritedHorizon):
    """Ended in the stop, its owner could not drop it, and leaves an orphan."""

    name = "live-temp"
    summary = "an old temporary table of a session that lives, in a pool of connections"
    holds_back = True
    application = "pooled worker"
    consents = frozenset({Consent.SESSION, Consent.SINGLE_USER})
    single_user = True

    async def warm(self, drill: Drill) -> None:
        """Make the table."""
        # A table is born as old as the horizon of its day.
        self.owner = await drill.session(self.application, SCRATCH)
