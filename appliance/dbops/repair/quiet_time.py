"""Stage 1, in which nothing of ours writes: maintenance mode, and every row counted before and after.

Owns both. Never: takes a step, or calls rows lost that somebody else may have added or rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from appliance.database_failure import DatabaseFailure
from appliance.dbops.repair.door import Door
from appliance.dbops.repair.row_counts import (
    RowComparison,
    RowCounts,
    RowReading,
    compare,
    count_rows,
)
from appliance.dbops.repair.run_journal import RunJournal
from appliance.dbops.snapshot.snapshot import Snapshot
from appliance.errors import ApplianceError
from appliance.maintenance import maintenance


class QuietTime:
    """From `begin` to `end`, each of which may be called again; `close` in any case, and last."""

    def __init__(
        self,
        data_dir: Path | None,
        reading: RowReading | None,
        door: Door,
        journal: RunJournal,
        said: Callable[[str], None],
    ) -> None:
        self._data_dir = data_dir
        self._reading = reading
        self._door = door
        self._journal = journal
        self._said = said
        self._mode = ExitStack()
        self._is_on = False
        self._before: RowCounts | None = None
        self.rows: RowComparison | None = None
        """Of the rows before the first step with those before maintenance mode ended, in each stage 1."""

    async def begin(self, snapshot: Snapshot, *, maintenance_too: bool) -> None:
        """Before the first step of a stage 1. Raises DatabaseError when another process holds the mode,
        and what counting raises."""
        if maintenance_too and self._data_dir is not None and not self._is_on:
            self._mode.enter_context(maintenance(self._data_dir))
            self._is_on = True
            self._said("maintenance mode is on: the server keeps turns in its journal")
        if self._reading is not None and self._before is None:
            self._before = await self._first_count(snapshot)

    async def end(self, snapshot: Snapshot) -> None:
        """After its last step, and before the server writes again."""
        if self._before is not None:
            await self._compare(self._before, snapshot)
            self._before = None
        if self._is_on:
            self.close()
            self._said("maintenance mode is off: the server writes again")

    def close(self) -> None:
        """End maintenance mode."""
        self._mode.close()
        self._is_on = False

    async def _first_count(self, snapshot: Snapshot) -> RowCounts:
        """That of a run that was killed counts: what it has done is to be looked at too."""
        counted = self._journal.counted()
        if counted is not None:
            return counted
        counts = await self._count(snapshot)
        self._journal.write("rows_counted", tables=[asdict(table) for table in counts.tables])
        return counts

    async def _compare(self, before: RowCounts, snapshot: Snapshot) -> None:
        try:
            found = compare(before, await self._count(snapshot))
        except (ApplianceError, *DatabaseFailure) as error:
            self._said(f"the rows could not be counted again: {error}")
            return
        self._journal.write(
            "rows_compared",
            tables=found.tables,
            changes=[asdict(change) for change in found.changes],
        )
        earlier = () if self.rows is None else self.rows.changes
        self.rows = replace(found, changes=(*earlier, *found.changes))

    async def _count(self, snapshot: Snapshot) -> RowCounts:
        self._said("counting every row")
        await self._door.room()
        sessions = self._door.sessions()
        try:
            return await count_rows(snapshot, sessions, digest=self._reading is RowReading.HASH)
        finally:
            await sessions.close()
