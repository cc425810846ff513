"""Gives pages up that nobody can read any more: keeps a copy of each, and puts an empty one in its place.

PostgreSQL's own `zero_damaged_pages` changes a page in memory alone: it is damaged again once it has
been thrown out there. So the empty one is written to the file, by a program on the server's machine, and
synced, before the VACUUM. Nobody can have changed the page in between: what cannot be read is not in
memory. Never: touches a page that can be read.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from urllib.parse import quote

import asyncpg

from appliance.dbops.faults import RepairFault, damaged_block, repair_fault
from appliance.dbops.plan.step import Step
from appliance.dbops.quoting import identifier
from appliance.dbops.repair.empty_page import empty_page
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.run_queries import QUERIES
from appliance.dbops.snapshot.snapshot import Relation
from appliance.dbops.target import Connection
from appliance.durable import replace_file
from appliance.errors import DatabaseError

PAGES_MAX = 10_000
"""Beyond it a table is beyond this kind of repair: it is to be restored from a backup."""


_PATH = re.compile(r"[A-Za-z0-9_./]+")
"""Of a relation's file, in the data folder: numbers and names of the server's own."""


async def give_up_damaged_pages(
    step: Step, relation: Relation, sessions: MaintenanceSessions, folder: Path
) -> tuple[Path, ...]:
    """Find every unreadable page of a relation by reading it; returns the files with their copies.

    Raises what the server answers to anything but a damaged page, DatabaseError past PAGES_MAX and where
    an empty page does not help.
    """
    assert step.database is not None
    connection = await sessions.get(step.database)
    name = identifier(relation.schema, relation.name)
    # A database may be called `../x`.
    file_name = quote(step.database, safe="")
    kept: list[Path] = []
    start = 0
    while True:
        block = await _first_damaged(connection, name, start, None)
        if block is None:
            return tuple(kept)
        if len(kept) == PAGES_MAX:
            raise DatabaseError(
                f"{name} has more than {PAGES_MAX:,} damaged pages: restore it from a backup"
            )
        start = block + 1
        # What could be read the second time was a fault of the disk's for a moment, and is to stay.
        if await _first_damaged(connection, name, block, start) is None:
            continue
        page = await connection.fetchrow(QUERIES["page"], relation.oid, block)
        assert page is not None
        kept.append(folder / f"{file_name}.{relation.oid}.{block}.page")
        _write(kept[-1], page["content"])
        await _empty(connection, page, block)
        if await _first_damaged(connection, name, block, start) is not None:
            raise DatabaseError(f"page {block} of {name} cannot be read though it is empty now")


async def _first_damaged(
    connection: Connection, name: str, start: int, end: int | None
) -> int | None:
    """The first page that cannot be read, of those from `start` on and before `end`."""
    before = "" if end is None else f" AND ctid < '({end},0)'::tid"
    try:
        await connection.fetchval(
            f"SELECT count(*) FROM ONLY {name} WHERE ctid >= '({start},0)'::tid{before}"
        )
    except asyncpg.PostgresError as error:
        block = damaged_block(error)
        if repair_fault(error) is not RepairFault.DAMAGED or block is None or block < start:
            raise
        return block
    return None


async def _empty(connection: Connection, page: asyncpg.Record, block: int) -> None:
    """Write an empty page over one, on the server's machine and to its disk."""
    path, size, number = page["path"], page["page_bytes"], page["number"]
    assert _PATH.fullmatch(path)
    empty = empty_page(size, block, little_endian=page["little_endian"])
    # A program gets text alone. Without `bs`, dd puts together what comes through the pipe in parts.
    text = base64.b64encode(empty).decode()
    place = f"of={path} obs={size} seek={number}"
    await connection.execute(
        f"COPY (SELECT '{text}') TO PROGRAM 'base64 -d | dd {place} conv=notrunc,fsync 2>/dev/null'"
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, content)
