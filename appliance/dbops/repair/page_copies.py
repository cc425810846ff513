"""Copies of pages that are about to be given up, as they lie on the disk. Never: writes to a database."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import asyncpg

from appliance.dbops.faults import Fault, damaged_block, fault_of
from appliance.dbops.plan.step import Step
from appliance.dbops.quoting import identifier
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.repair.run_step import QUERIES
from appliance.dbops.snapshot.snapshot import Relation
from appliance.durable import replace_file
from appliance.errors import DatabaseError

PAGES_MAX = 10_000
"""Beyond it a table is beyond this kind of repair: it is to be restored from a backup."""


async def copy_damaged_pages(
    step: Step, relation: Relation, sessions: MaintenanceSessions, folder: Path
) -> tuple[Path, ...]:
    """Find every unreadable page of a relation by reading it, and keep each in a file of its own.

    Raises what the server answers to anything but a damaged page, DatabaseError past PAGES_MAX.
    """
    assert step.database is not None
    connection = await sessions.get(step.database)
    name = identifier(relation.schema, relation.name)
    # A database may be called `../x`.
    file_name = quote(step.database, safe="")
    kept: list[Path] = []
    start = 0
    while True:
        try:
            await connection.fetchval(
                f"SELECT count(*) FROM ONLY {name} WHERE ctid >= '({start},0)'::tid"
            )
        except asyncpg.PostgresError as error:
            block = damaged_block(error)
            if fault_of(error) is not Fault.DAMAGED or block is None or block < start:
                raise
            if len(kept) == PAGES_MAX:
                raise DatabaseError(
                    f"{name} has more than {PAGES_MAX:,} damaged pages: restore it from a backup"
                ) from error
            page = await connection.fetchval(QUERIES["page"], relation.oid, block)
            kept.append(folder / f"{file_name}.{relation.oid}.{block}.page")
            _keep(kept[-1], page)
            start = block + 1
        else:
            break
    return tuple(kept)


def _keep(path: Path, page: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, page)
