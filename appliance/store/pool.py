"""Connections to PostgreSQL: a few, each with timeouts, each held for one statement or transaction.

Owns the pool. Never: holds a connection while a model generates, or waits without a bound.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import asyncpg

from appliance.config import DatabaseConfig
from appliance.database_failure import DatabaseFailure
from appliance.database_url import check_database_url
from appliance.errors import ConfigError
from appliance.store.retry import retrying

T = TypeVar("T")

if TYPE_CHECKING:
    # Generic in the type stubs only.
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.Connection

APPLICATION_NAME = "appliance"
CONNECT_TIMEOUT_S = 5.0
LOCK_TIMEOUT_MS = 2000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 5000
ACQUIRE_TIMEOUT_S = 5.0
COMMAND_MARGIN_S = 2.0
IDLE_CONNECTION_S = 300.0


async def connect(url: str, config: DatabaseConfig) -> Pool:
    """A pool of at most `config.pool_max` connections; opens none, so a database may be away.

    Raises ConfigError when the URL is none.
    """
    _check_url(url)
    settings = _session_settings(config)
    if config.pooling == "transaction":
        return await _connect_to_pooler(url, config, settings)
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=config.pool_max,
        timeout=CONNECT_TIMEOUT_S,
        # The server's own timeout comes first; this one is for a server that does not answer at all.
        command_timeout=config.statement_timeout_ms / 1000 + COMMAND_MARGIN_S,
        max_inactive_connection_lifetime=IDLE_CONNECTION_S,
        reset=_nothing_to_reset,
        server_settings={"application_name": APPLICATION_NAME, **settings},
    )


def _session_settings(config: DatabaseConfig) -> dict[str, str]:
    return {
        "statement_timeout": str(config.statement_timeout_ms),
        "lock_timeout": str(LOCK_TIMEOUT_MS),
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
        # Planning costs more than running here, and partitions are chosen as a plan starts.
        "plan_cache_mode": "force_generic_plan",
    }


class _PoolerConnection(asyncpg.Connection):
    """A connection to a pooler that gives it a server's session for one transaction at a time.

    So no setting and no prepared statement outlives a transaction: each begins with `set_local`.
    """

    set_local = ""


async def _connect_to_pooler(url: str, config: DatabaseConfig, settings: dict[str, str]) -> Pool:
    set_local = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=config.pool_max,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=config.statement_timeout_ms / 1000 + COMMAND_MARGIN_S,
        max_inactive_connection_lifetime=IDLE_CONNECTION_S,
        reset=_nothing_to_reset,
        connection_class=type("PoolerConnection", (_PoolerConnection,), {"set_local": set_local}),
        statement_cache_size=0,
        server_settings={"application_name": APPLICATION_NAME},
    )


@asynccontextmanager
async def acquired(pool: Pool) -> AsyncIterator[Connection]:
    """One connection for a moment; raises TimeoutError when none is free in time.

    Behind a pooler by transaction the moment is one transaction, committed at its end.
    """
    async with pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
        # The proxy that the pool gives out looks for this in the connection itself.
        set_local: str | None = getattr(connection, "set_local", None)
        if set_local is not None:
            async with connection.transaction():
                await connection.execute(set_local)
                yield connection  # type: ignore[misc]
            return
        yield connection  # type: ignore[misc]  # the stubs speak of a proxy with the same methods


@asynccontextmanager
async def transacted(pool: Pool) -> AsyncIterator[Connection]:
    """As `acquired`, all of it one transaction; what writes goes through here.

    Its commit is a message of its own, sent once the statements have been answered. A server process
    that stood still and goes on after its client has given up (a machine that was paused, a disk that
    hung) reads what was sent to it and then the end of the connection: it takes all of it back. Had it
    the commit already, it still holds the rows locked that it wrote, and nobody has gone past them.
    """
    async with acquired(pool) as connection:
        if connection.is_in_transaction():
            yield connection
            return
        try:
            await connection.execute("BEGIN")
            yield connection
            status = await connection.execute("COMMIT")
            assert status == "COMMIT", "a statement's failure was passed over"
        except (TimeoutError, asyncio.CancelledError):
            _end(connection)  # it may never answer, and is to commit nothing once it goes on
            raise
        except BaseException:
            await _rolled_back(connection)
            raise


async def _rolled_back(connection: Connection) -> None:
    """After a failure, which is what is to be told: a connection that is lost rolls back by itself."""
    try:
        if connection.is_in_transaction():
            await connection.execute("ROLLBACK")
    except DatabaseFailure:
        _end(connection)


def _end(connection: Connection) -> None:
    # One that was lost the pool has taken back already: there is nothing left to end.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def retried(
    pool: Pool,
    operation: Callable[[Connection], Awaitable[T]],
    *,
    budget_s: float,
    jitter: random.Random,
) -> T:
    """What `operation` reads on one connection, another one at each try; see `retrying`."""

    async def once() -> T:
        async with acquired(pool) as connection:
            return await operation(connection)

    return await retrying(once, budget_s=budget_s, jitter=jitter)


async def retried_write(
    pool: Pool,
    operation: Callable[[Connection], Awaitable[T]],
    *,
    budget_s: float,
    jitter: random.Random,
) -> T:
    """What `operation` writes in one transaction, another one at each try; see `retrying`."""
    return await retried_deed(
        pool, lambda connection, _: operation(connection), budget_s=budget_s, jitter=jitter
    )


async def retried_deed(
    pool: Pool,
    operation: Callable[[Connection, bool], Awaitable[T]],
    *,
    budget_s: float,
    jitter: random.Random,
) -> T:
    """As `retried_write`, for what can be done once only.

    From its second try on `operation` is told so (True): the one before may have done it and lost the
    answer, so that there is nothing left to do.
    """
    tries = 0

    async def once() -> T:
        nonlocal tries
        tries += 1
        is_again = tries > 1
        async with transacted(pool) as connection:
            return await operation(connection, is_again)

    return await retrying(once, budget_s=budget_s, jitter=jitter)


def _check_url(url: str) -> None:
    """The pool reads its URL when it first connects; a mistake in it should stop the process earlier."""
    try:
        check_database_url(url)
    except ValueError as error:
        raise ConfigError(f"database.url {error}") from error


async def _nothing_to_reset(_: object) -> None:
    """Our statements leave no session state, so giving a connection back costs no round trip."""
