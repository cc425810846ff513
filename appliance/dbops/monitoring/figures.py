"""The few figures of a PostgreSQL that one line of `appliance status` shows. Needs no transaction ID."""

from __future__ import annotations

from importlib import resources
from typing import Any

from appliance.dbops.target import Connection

FIGURES = (resources.files("appliance.dbops") / "sql" / "figures.sql").read_text(encoding="utf-8")


async def read_figures(connection: Connection) -> dict[str, Any]:
    """Version, ages in transactions, bytes, sessions. Raises what asyncpg raises."""
    row = await connection.fetchrow(FIGURES)
    assert row is not None
    return dict(row)
