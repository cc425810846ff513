"""What `appliance experiment` reads in the database itself, and where that is. Never: writes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from appliance.errors import StorageUnavailable

if TYPE_CHECKING:
    from appliance.config import DatabaseConfig
    from appliance.store.pool import Pool

T = TypeVar("T")

STATEMENT_TIMEOUT_MS = 600_000


def read(options: argparse.Namespace, question: Callable[[Pool], Awaitable[T]]) -> T:
    """What `question` finds. Raises what it raises, and StorageUnavailable where the database fails."""
    from appliance.database_failure import DatabaseFailure
    from appliance.store.pool import connect

    url, config = _database_of(options)

    async def found() -> T:
        pool = await connect(url, config)
        try:
            return await question(pool)
        except DatabaseFailure as error:
            # Its text names no value of ours: queries have one parameter, the experiment's name.
            told = str(error) or "no answer in time"
            raise StorageUnavailable(
                f"the database failed: {type(error).__name__}: {told}"
            ) from error
        finally:
            pool.terminate()

    return asyncio.run(found())


def _database_of(options: argparse.Namespace) -> tuple[str, DatabaseConfig]:
    """The address of the appliance's database, and settings for long questions."""
    import msgspec

    from appliance.cli.db_choice import choose
    from appliance.cli.postgres import with_own_postgres
    from appliance.config import DatabaseConfig
    from appliance.credentials import load_as_service
    from appliance.dbops.cluster.cluster import socket_url

    choose(options)
    if options.config is not None:
        database = with_own_postgres(load_as_service(options.config)).database
    else:
        from appliance.cli.demo_paths import demo_paths

        database = DatabaseConfig(url=socket_url(demo_paths(options.data_dir).postgres_dir))
    assert database.url is not None
    patient = msgspec.structs.replace(database, statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    return database.url, patient
