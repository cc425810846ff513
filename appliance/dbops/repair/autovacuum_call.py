"""Lets autovacuum into a database that takes no connections, and puts its settings back.

Owns what ALTER SYSTEM set for that time: it is in the run's journal before it is set, so that a run that
was killed in between leaves nothing behind once it is gone on with. Needs no transaction ID.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from appliance.dbops.plan.step import Step
from appliance.dbops.remedies import set_setting
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.result import Result, State
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.target import Connection

POLL_S = 0.2
WAIT_S = 600.0
"""For autovacuum to be done. template0 takes half a second; what takes connections it need not do."""


async def call_autovacuum(
    step: Step, sessions: MaintenanceSessions, journal: RunJournal, *, wait_s: float = WAIT_S
) -> Result:
    """Wake the launcher and wait until the database is young, at most `wait_s`.

    Where the server was started with autovacuum off, nothing is waited for. Raises what the server
    answers, the settings being back then too.
    """
    started = time.monotonic()
    connection = await sessions.get(None)
    names = sorted(step.settings)
    own = await own_settings(connection, names)
    journal.write("settings_changed", before={name: own.get(name) for name in names})
    try:
        await set_settings(connection, step.settings)
        reason = await overruled(connection, step.settings)
        if reason:
            return Result(state=State.FAILED, words=reason)
        state = State.HELD
        while state is State.HELD and time.monotonic() - started < wait_s:
            await asyncio.sleep(POLL_S)
            row = await connection.fetchrow(QUERIES["database_age"], step.database_oid)
            if row is None or (
                row["xid_age"] < step.xid_age_max and row["mxid_age"] < step.mxid_age_max
            ):
                state = State.DONE
    finally:
        await restore_settings(sessions, journal)
    words = "" if state is State.DONE else f"autovacuum has not done it within {wait_s:.0f} s"
    return Result(state=state, words=words, seconds=time.monotonic() - started)


async def overruled(connection: Connection, settings: Mapping[str, str]) -> str:
    """Why autovacuum stays away whatever a file says; empty when nothing of the kind is known."""
    switches = {name: value for name, value in settings.items() if value in ("on", "off")}
    rows = await connection.fetch(
        QUERIES["without_effect"], list(switches), list(switches.values())
    )
    told = [f"{row['name']} is {row['setting']} by its {row['source']}" for row in rows]
    if not told:
        return ""
    return f"autovacuum cannot be let in: {', '.join(told)}. Start the server without that"


async def restore_settings(sessions: MaintenanceSessions, journal: RunJournal) -> None:
    """Put back what this run, or one that was killed, has changed; nothing when that is nothing."""
    before = journal.settings_to_restore()
    if not before:
        return
    connection = await sessions.get(None)
    now = await own_settings(connection, before)
    # Nothing to do is done without ALTER SYSTEM, which allow_alter_system may forbid.
    if values := {name: value for name, value in before.items() if now.get(name) != value}:
        await set_settings(connection, values)
    journal.write("settings_restored")


async def own_settings(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """What ALTER SYSTEM has set of these."""
    rows = await connection.fetch(QUERIES["own_settings"], sorted(names))
    return {row["name"]: row["setting"] for row in rows}


async def set_settings(connection: Connection, values: Mapping[str, str | None]) -> None:
    """ALTER SYSTEM and reload; None takes a setting out again. The names are this package's own."""
    for name, value in values.items():
        await connection.execute(set_setting(name, value))
    await connection.fetchval(QUERIES["reload"])
