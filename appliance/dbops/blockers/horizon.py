"""How far a VACUUM could freeze each database now, and who keeps it from going further. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.dbops.blockers.blocker import Blocker
from appliance.dbops.blockers.holders import holders
from appliance.dbops.snapshot.snapshot import Database, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Of one database: who holds its users' tables, and who its catalogs; None: nobody."""

    database: str
    data: Blocker | None
    catalogs: Blocker | None


def horizons(snapshot: Snapshot) -> tuple[Horizon, ...]:
    """The horizon of each database, those included that take no connections."""
    found = tuple(holders(snapshot))
    return tuple(
        Horizon(
            database=database.name,
            data=_furthest(item for item in found if _holds_data(item, database)),
            # The shared catalogs are among them: whoever holds those holds every database's.
            catalogs=_furthest(found),
        )
        for database in snapshot.databases
    )


def _holds_data(holder: Blocker, database: Database) -> bool:
    reach = holder.reach
    return not reach.catalogs_only and reach.database in (None, database.name)


def _furthest(found: Iterable[Blocker]) -> Blocker | None:
    return max(found, key=lambda item: item.age or 0, default=None)
