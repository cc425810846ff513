"""Situations with something damaged that a VACUUM stumbles over."""

from __future__ import annotations

import random
from pathlib import Path

from appliance.dbops.drill.drill import Drill
from appliance.dbops.drill.situation import Situation
from appliance.dbops.plan.step import Consent

PAGE_BYTES = 8192
DAMAGED_PAGE = 5
INDEX_PAGES = 20
SEED = 7


class DamagedPage(Situation):
    """Eight bytes in the middle of a page are written over while the server is down."""

    name = "damaged-page"
    summary = "a page of a table fails its checksum"
    holds_back = True
    consents = frozenset({Consent.ZERO_DAMAGED_PAGES})
    changes = frozenset({'app."public"."scratched"'})

    async def plant(self, drill: Drill) -> None:
        """An empty table, with an index."""
        await drill.execute("CREATE TABLE scratched (n integer PRIMARY KEY, body text)")
        self._path = await file_of(drill, "scratched")

    async def loaded(self, drill: Drill) -> None:
        """Rows on 125 pages, of which none is frozen: a VACUUM has to read them all. They are full."""
        await drill.execute(
            "INSERT INTO scratched SELECT n, repeat('z', 980) FROM generate_series(1, 1000) AS n"
        )

    async def cold(self, drill: Drill) -> None:
        """Break the sixth."""
        drill.cluster.overwrite(
            self._path, PAGE_BYTES * DAMAGED_PAGE + PAGE_BYTES // 2, b"GARBAGE!"
        )


class DamagedIndex(Situation):
    """Noise over the first pages of an index, after rows of its table were deleted."""

    name = "damaged-index"
    summary = "an index is damaged, so that no VACUUM gets through that cleans it"

    async def plant(self, drill: Drill) -> None:
        """A table with dead rows, which a VACUUM would look up in its index."""
        await drill.execute(
            "CREATE TABLE listed AS SELECT n FROM generate_series(1, 30000) AS n; "
            "CREATE INDEX listed_n ON listed (n); DELETE FROM listed WHERE n % 3 = 0"
        )
        self._path = await file_of(drill, "listed_n")

    async def cold(self, drill: Drill) -> None:
        """Write the noise."""
        noise = random.Random(SEED).randbytes(PAGE_BYTES * INDEX_PAGES)
        drill.cluster.overwrite(self._path, PAGE_BYTES, noise)


class UnfrozenRow(Situation):
    """A table's `relfrozenxid` is set four XIDs past its rows."""

    name = "unfrozen-row"
    summary = "rows are older than their table claims to hold, as after a bad copy of files"
    consents = frozenset({Consent.FREEZE_BAD_ROWS})

    async def loaded(self, drill: Drill) -> None:
        """A table that claims to be younger than its rows."""
        await drill.execute("CREATE TABLE misplaced AS SELECT n FROM generate_series(1, 10) AS n")
        for _ in range(4):
            await drill.execute("SELECT pg_current_xact_id()")
        await drill.execute(
            "UPDATE pg_class SET relfrozenxid = "
            "(SELECT (xmin::text::bigint + 4)::text::xid FROM misplaced LIMIT 1) "
            "WHERE relname = 'misplaced'"
        )


async def file_of(drill: Drill, relation: str) -> Path:
    """The relation's first file, within the data folder."""
    found = await drill.value(f"SELECT pg_relation_filepath('{relation}')")
    assert isinstance(found, str)
    return Path(found)
