"""`appliance postgres`: the embedded PostgreSQL under a service manager. Never: another's database.

The process that systemd watches: it makes the cluster at the first start, tells the manager while
PostgreSQL recovers, ends with it, and stops it in order at a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

import msgspec

from appliance.config import Config
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import SOCKET_PATH_BYTES_MAX, Cluster, socket_url
from appliance.dbops.cluster.programs import STOP_TIMEOUT_S
from appliance.dbops.settings import PORT
from appliance.errors import ConfigError
from appliance.service_manager import ServiceManager

log = logging.getLogger("appliance.postgres")

EXIT_ENDED = 1
"""PostgreSQL ended by itself; the service manager starts both again."""


def run_postgres(config: Config, manager: ServiceManager) -> int:
    """Run the cluster of `paths.postgres_dir` until a signal; returns the exit code.

    Raises DatabaseError, or ConfigError when `database.url` names another server.
    """
    if config.database.url is not None:
        raise ConfigError(
            "database.url names a PostgreSQL of its own: appliance-postgres.service is not for that one "
            "(systemctl disable --now appliance-postgres.service)"
        )
    cluster = Cluster(config.paths.postgres_dir, find_binaries())
    return asyncio.run(_run(cluster, manager))


def with_own_postgres(config: Config) -> Config:
    """The configuration as the server reads it: without a `database.url`, that of the embedded cluster.

    Raises ConfigError when the address of its socket would be too long.
    """
    if config.database.url is not None:
        return config
    folder = config.paths.postgres_dir
    if len(os.fsencode(folder / f".s.PGSQL.{PORT}")) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"paths.data_dir: {folder} is too long for a socket's address "
            f"({SOCKET_PATH_BYTES_MAX} bytes with the socket's name)"
        )
    replace = msgspec.structs.replace
    return replace(config, database=replace(config.database, url=socket_url(folder)))


async def _run(cluster: Cluster, manager: ServiceManager) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    stop_asked = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(_start(cluster, manager.starting))
    with manager.working("starting PostgreSQL"):
        await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not starting.done():
            return 0
        process = starting.result()
        manager.ready("serving")
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({ended, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            log.error("postgres_ended", extra={"status": ended.result()})
            return EXIT_ENDED
        # Fast, then without a checkpoint, then by force.
        manager.stopping("stopping PostgreSQL", within_s=3 * STOP_TIMEOUT_S)
        await cluster.stop()
        await ended
        return 0
    finally:
        for task in (starting, stop_asked):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(starting, stop_asked, return_exceptions=True)
        await cluster.stop()


async def _start(cluster: Cluster, tell: Callable[[str], None]) -> asyncio.subprocess.Process:
    if not cluster.exists:
        await cluster.init(tell)
    return await cluster.start(tell)
