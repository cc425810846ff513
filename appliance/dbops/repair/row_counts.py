"""How many rows each table has, and what they add up to: before a repair and after it.

Reads every row. Never: writes to a database, keeps a row, or calls rows lost that somebody may have added
or rewritten in between; a hash is of all rows of a table together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import asyncpg
import msgspec

from appliance.counted import counted
from appliance.dbops.names import can_be_entered, name_of
from appliance.dbops.quoting import identifier
from appliance.dbops.repair.maintenance_session import MaintenanceSessions
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.durable import replace_file
from appliance.errors import ConfigError
from appliance.named_sql import read_queries

QUERIES = read_queries("appliance.dbops", "verify")

ROW_TEXT = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
}
"""What a row's text depends on: the defaults of a database may be others at the second count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The rows of one table; `digest` is the sum of the hashes of its rows, None when not asked for."""

    database: str
    table: str
    rows: int | None
    """None: it could not be read."""
    digest: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """All tables of a cluster at about one time."""

    system_id: str
    tables: tuple[TableRows, ...]


class RowReading(StrEnum):
    """What a table is told by: how many rows it has, or what they are too."""

    COUNT = "count"
    HASH = "hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """A table that is not as it was. `is_loss` None: it may be one, or others' work meanwhile."""

    database: str
    table: str
    words: str
    is_loss: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """Of two counts: how many tables the first has, and those that are not as they were."""

    tables: int
    changes: tuple[RowChange, ...]

    @property
    def is_loss(self) -> bool | None:
        """Whether rows were lost; None where that cannot be told of a table."""
        losses = {change.is_loss for change in self.changes}
        return True if True in losses else None if None in losses else False


async def count_rows(
    snapshot: Snapshot, sessions: MaintenanceSessions, *, digest: bool
) -> RowCounts:
    """Count every table of every database that takes connections; a table that fails is named."""
    found: list[TableRows] = []
    for database in snapshot.databases:
        if not database.connectable:
            continue
        connection = await sessions.get(database.name, ROW_TEXT)
        for table in await connection.fetch(QUERIES["tables"]):
            name = identifier(name_of(table["schema"]), name_of(table["name"]))
            if not can_be_entered(table["schema"], table["name"]):
                found.append(
                    TableRows(
                        database=database.name, table=name, rows=None, fault="its name is no UTF-8"
                    )
                )
                continue
            # A row's text has all its columns, and a column may be named as the row is; hashes are
            # summed, so the order of the rows is nothing. No cast: to text it may be the owner's own
            # function, and this is a superuser.
            total = (
                "sum(hashtextextended(textin(record_out((counted.*))), 0)::numeric)::text"
                if digest
                else "NULL::text"
            )
            try:
                # The condition keeps an index from being read in place of the table.
                row = await connection.fetchrow(
                    f"SELECT count(*) AS rows, {total} AS digest FROM ONLY {name} AS counted "
                    "WHERE counted.ctid >= '(0,0)'::tid"
                )
            except asyncpg.PostgresError as error:
                found.append(
                    TableRows(database=database.name, table=name, rows=None, fault=str(error))
                )
                continue
            assert row is not None
            found.append(
                TableRows(
                    database=database.name, table=name, rows=row["rows"], digest=row["digest"]
                )
            )
    return RowCounts(system_id=snapshot.system_id, tables=tuple(found))


def compare(before: RowCounts, after: RowCounts) -> RowComparison:
    """Two counts of one cluster. Pure. Raises ConfigError when they are of two."""
    return RowComparison(tables=len(before.tables), changes=changes(before, after))


def changes(before: RowCounts, after: RowCounts) -> tuple[RowChange, ...]:
    """Every table that differs. Pure. Raises ConfigError when they are of two clusters."""
    if before.system_id != after.system_id:
        raise ConfigError(
            f"the counts are of the cluster {before.system_id}, and this is {after.system_id}: two "
            "clusters cannot be compared"
        )
    now = {(table.database, table.table): table for table in after.tables}
    found = []
    for table in before.tables:
        found.append(_change(table, now.get((table.database, table.table))))
    return tuple(change for change in found if change is not None)


def _change(before: TableRows, after: TableRows | None) -> RowChange | None:
    def change(words: str, *, is_loss: bool | None) -> RowChange:
        return RowChange(database=before.database, table=before.table, words=words, is_loss=is_loss)

    if after is None:
        return change("it is gone", is_loss=True)
    if before.rows is None or after.rows is None:
        if before.rows is after.rows:
            return None
        return change(after.fault or "it can be read now", is_loss=after.rows is None)
    if after.rows < before.rows:
        return change(f"{counted(before.rows - after.rows, 'row')} fewer", is_loss=True)
    if after.rows > before.rows:
        more = counted(after.rows - before.rows, "row")
        words = f"{more} more: whether any was lost cannot be told"
        return change(words, is_loss=None)
    if before.digest is not None and after.digest is not None and before.digest != after.digest:
        words = "as many rows, and not the same ones: rewritten or lost, which cannot be told"
        return change(words, is_loss=None)
    return None


def check_new(path: Path) -> None:
    """Raises ConfigError, before hours of counting, where counts cannot be kept in a new file."""
    if path.exists():
        raise ConfigError(
            f"{path}: is there already, and counts are not written over: name another"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: no file can be made in {path.parent}")


def write_counts(path: Path, counts: RowCounts) -> None:
    """Keep counts in a file of JSON, durable when this returns. Raises OSError."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(counts), indent=1))


def read_counts(path: Path) -> RowCounts:
    """Counts that `write_counts` kept. Raises ConfigError when the file is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RowCounts)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is no file of row counts: {error}") from error
