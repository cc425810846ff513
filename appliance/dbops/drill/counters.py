"""Moving a cluster's counters to just before a limit, and spending what is left.

Owns the arithmetic of where a counter is put. Never: decides in which situation.
"""

from __future__ import annotations

from pathlib import Path

import asyncpg

from appliance.database_failure import OUT_OF_IDS, failure_kind
from appliance.dbops.drill.ground import GROUND
from appliance.dbops.drill.situation import Counter
from appliance.dbops.drill.throwaway import SLRU_SEGMENT_BYTES, ThrowAway
from appliance.dbops.limits import MEMBERS_MAX, MEMBERS_PER_SEGMENT, STOP_AGE
from appliance.dbops.target import Connection
from appliance.errors import DatabaseError

STATUSES_PER_PAGE = 8192 * 4
"""XIDs whose outcome is on one page of `pg_xact` (CLOG_XACTS_PER_PAGE, clog.c)."""

OFFSETS_PER_PAGE = 8192 // 4
"""Multixacts whose place is on one page of `pg_multixact/offsets` (multixact.c)."""

OFFSETS_PER_SEGMENT = SLRU_SEGMENT_BYTES // 4
MULTIXACTS_LEFT = 10_000
MEMBERS_LEFT = 20_000
ROUNDS_MAX = 8
ROWS_EACH = 18_000
SPEND_TIMEOUT_S = 120.0


def xid_page_start(xid: int) -> int:
    """The first XID of its page of `pg_xact`: a server that begins there needs no page to be there."""
    return xid // STATUSES_PER_PAGE * STATUSES_PER_PAGE


async def move_to_xid(cluster: ThrowAway, xid: int) -> None:
    """Make the stopped cluster go on with the page that holds `xid`."""
    await cluster.reset("-x", str(xid_page_start(xid)))


async def move_to_the_brink(cluster: ThrowAway, counter: Counter) -> None:
    """Make the stopped cluster go on with the last IDs before it refuses them."""
    control = await cluster.control()
    if counter is Counter.XIDS:
        oldest = int(control["Latest checkpoint's oldestXID"])
        await move_to_xid(cluster, oldest + STOP_AGE)
    elif counter is Counter.MULTIXACTS:
        oldest = int(control["Latest checkpoint's oldestMultiXid"])
        following = (oldest + STOP_AGE - MULTIXACTS_LEFT) // OFFSETS_PER_PAGE * OFFSETS_PER_PAGE
        _write_empty_segment(cluster, "offsets", following // OFFSETS_PER_SEGMENT)
        await cluster.reset("-m", f"{following},{oldest}")
    else:
        offset = MEMBERS_MAX - MEMBERS_LEFT
        _write_empty_segment(cluster, "members", offset // MEMBERS_PER_SEGMENT)
        await cluster.reset("-O", str(offset))


async def spend(connection: Connection, counter: Counter) -> None:
    """Use up what is left, until the server refuses an ID. Raises DatabaseError when it never does."""
    await connection.execute("SET client_min_messages = error")
    await connection.execute("SET log_min_messages = fatal")  # a warning for each ID otherwise
    await connection.execute(f"SET drill.rows = {ROWS_EACH}")
    block = GROUND["spend_xids" if counter is Counter.XIDS else "spend_multixacts"]
    for _ in range(ROUNDS_MAX):
        if await is_refused(connection, block):
            return
    raise DatabaseError(f"the drill could not use up the {counter.value}")


async def is_refused(connection: Connection, statement: str) -> bool:
    """Whether the server refuses an ID that this statement needs; other errors are raised."""
    try:
        await connection.execute(statement, timeout=SPEND_TIMEOUT_S)
    except asyncpg.ProgramLimitExceededError as error:
        if failure_kind(error) not in OUT_OF_IDS:
            raise
        return True
    return False


def _write_empty_segment(cluster: ThrowAway, kind: str, number: int) -> None:
    path = Path("pg_multixact", kind, f"{number:04X}")
    cluster.write(path, bytes(SLRU_SEGMENT_BYTES))
