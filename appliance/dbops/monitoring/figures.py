"""The few figures of a PostgreSQL that one line of `appliance status` shows. Needs no transaction ID."""

from __future__ import annotations

from importlib import resources
from typing import Any

import asyncpg

from appliance.dbops.target import Target
from appliance.errors import DatabaseError

FIGURES = (resources.files("appliance.dbops") / "sql" / "figures.sql").read_text(encoding="utf-8")
SCHEMA = (resources.files("appliance.dbops") / "sql" / "schema_version.sql").read_text(
    encoding="utf-8"
)


async def read_figures(target: Target) -> dict[str, Any]:
    """Version, ages in transactions, bytes, sessions; `schema_version` is None without the schema.

    Raises NotRunning or DatabaseError.
    """
    connection = await target.connect()
    try:
        row = await connection.fetchrow(FIGURES)
        assert row is not None
        told = dict(row)
        has_schema = told.pop("has_schema")
        told["schema_version"] = await connection.fetchval(SCHEMA) if has_schema else None
    except asyncpg.PostgresError as error:
        raise DatabaseError(f"{target}: {error}") from error
    finally:
        await connection.close()
    return told
