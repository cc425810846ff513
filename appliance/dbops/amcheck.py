"""Looks into the rows of a table and the structure of a b-tree, through PostgreSQL's extension amcheck.

Owns how its functions are called: by the schema they are in, so that nobody else's is. Needs no
transaction ID. Never: judges an error; what the server raises is the caller's to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from appliance.dbops.quoting import identifier
from appliance.dbops.remedies import check_rows
from appliance.dbops.target import Connection
from appliance.named_sql import read_queries

QUERIES = read_queries("appliance.dbops", "amcheck")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """What amcheck says of a row."""

    block: int
    message: str


class Amcheck:
    """The extension in one database, through one session."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    @classmethod
    async def of(cls, connection: Connection) -> Amcheck | None:
        """None where it is not installed."""
        schema = await connection.fetchval(QUERIES["schema"])
        return None if schema is None else cls(connection, schema)

    async def first_bad_row(self, relation_oid: int) -> BadRow | None:
        """The first row of a table that cannot be right. Raises what the server answers."""
        row = await self._connection.fetchrow(
            f"SELECT blkno, msg FROM {check_rows(self._schema, '$1::oid', first=True)} LIMIT 1",
            relation_oid,
        )
        return None if row is None else BadRow(block=row["blkno"], message=row["msg"])

    async def b_trees(self, relation_oids: Sequence[int]) -> list[asyncpg.Record]:
        """`oid`, `schema` and `name` of each usable b-tree of these tables."""
        return await self._connection.fetch(QUERIES["b_trees"], relation_oids)

    async def check_b_tree(self, index_oid: int) -> None:
        """Raises what the server answers when it is not in order."""
        await self._connection.execute(
            f"SELECT {identifier(self._schema, 'bt_index_check')}($1::oid::regclass)", index_oid
        )
