"""Who owns a schema `pg_temp_N`: the process numbered N, if its temporary tables are its own. Pure.

A number is given out again, so a process may carry that of a dead one whose tables were left behind. The
tables' files tell them apart: those of the living exist (a server that starts removes the files of
temporary tables, and leaves their rows in the catalog) and were written after it began. The second goes
by the server's clock, which may have been set back in between, so it is asked only where a mistake loses
nothing: in the stop, where an orphan is dropped with the server stopped and every session ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

NUMBERS_ARE_EXACT = 160_000
"""From this `server_version_num` on a process's number in the statistics is the N of its schema."""

_SCHEMA = re.compile(r"pg_temp_(\d+)")
_NO_OWNERS = ("autovacuum worker", "autovacuum launcher", "walsender", "parallel worker")

FILE_TIME_GRAIN = timedelta(seconds=1)
"""PostgreSQL tells a file's time in whole seconds, cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedProcess:
    """A server process. `number` is its own since 16, before that only its place in the order."""

    number: int
    pid: int
    database_oid: int | None
    backend: str
    started: datetime | None
    virtual_number: int | None
    """Its own number where it is in a transaction."""
    own: bool
    """Whether it is this tool's, which makes no temporary tables."""


def temp_owners(
    schema: str,
    database_oid: int,
    processes: Sequence[NumberedProcess],
    *,
    exact: bool,
    files: Mapping[str, datetime | None] | None,
    by_clock: bool,
) -> tuple[int, ...]:
    """The pids of the processes that may own `schema` in a database: the owner, nobody, or candidates.

    `files` gives for each schema when its files were last written (None: it has none); None: not known.
    `by_clock`: whether files older than a process rule it out.
    """
    matched = _SCHEMA.fullmatch(schema)
    if matched is None:
        return ()
    wanted = int(matched[1])
    candidates = [
        process
        for process, (low, high) in zip(processes, _bounds(processes, exact=exact), strict=True)
        if low <= wanted <= high
        and process.database_oid == database_oid
        and process.backend not in _NO_OWNERS
        and not process.own
        and _may_have_written(process, schema, files, by_clock=by_clock)
    ]
    return tuple(process.pid for process in candidates)


def _bounds(processes: Sequence[NumberedProcess], *, exact: bool) -> list[tuple[int, float]]:
    """The least and greatest number that each process can have: numbers rise in the given order."""
    if exact:
        return [(process.number, process.number) for process in processes]
    lows: list[int] = []
    low = 0
    for process in processes:
        low = process.virtual_number or low + 1
        lows.append(low)
    highs: list[float] = []
    high = float("inf")
    for process in reversed(processes):
        high = process.virtual_number or high - 1
        highs.append(high)
    return list(zip(lows, reversed(highs), strict=True))


def _may_have_written(
    process: NumberedProcess,
    schema: str,
    files: Mapping[str, datetime | None] | None,
    *,
    by_clock: bool,
) -> bool:
    """Whether the schema's files can be of this process's making."""
    if files is None:
        return True
    modified = files.get(schema)
    if modified is None or not by_clock or process.started is None:
        return modified is not None
    return modified >= process.started - FILE_TIME_GRAIN
