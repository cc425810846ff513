"""The processes of one box: which ones, how each is started, and when they are ready together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from appliance.cli.supervisor import Child, Process, Supervisor, spawn
from appliance.cli.terminal import say
from appliance.config import Config, dump_config, engine_configs
from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import SOCKET_PATH_BYTES_MAX, Cluster
from appliance.dbops.folder import FolderLock
from appliance.errors import ConfigError, DatabaseError

SERVER_STOP_S = 10.0
ENGINE_STOP_S = 10.0
DATABASE_STOP_S = 30.0
READY_POLL_S = 0.1
READY_TIMEOUT_S = 2.0


async def run_processes(
    config: Config,
    listening: socket.socket,
    *,
    log_dir: Path | None,
    on_ready: Callable[[str], None],
) -> None:
    """Run server, engines and (without a database url) PostgreSQL until SIGINT or SIGTERM.

    `on_ready` gets the page's address once all of them serve. Raises ConfigError or DatabaseError.
    """
    with _folders(config, log_dir) as run_dir:
        cluster = None
        if config.database.url is None:
            cluster = Cluster(config.paths.postgres_dir, find_binaries())
        try:
            if cluster is not None:
                await _find_or_create(cluster)
            resolved = _resolve(config, run_dir, cluster)
            config_path = run_dir / "config.toml"
            _write_private(config_path, dump_config(resolved))
            children = _children(resolved, config_path, listening, cluster, log_dir)
            supervisor = Supervisor(children, say)
            await _run_until_signal(supervisor, listening, on_ready)
        finally:
            if cluster is not None:
                await cluster.stop()


async def _find_or_create(cluster: Cluster) -> None:
    """Make the first database of a new data folder; refuse at once what could not be started.

    A folder that is there but empty may be the mount point of a disk that is missing: a new database in
    it would look like the loss of all chats, so it takes `appliance db init`.
    """
    if not cluster.directory.exists():
        await cluster.init(say)
    elif not cluster.exists and not any(cluster.directory.iterdir()):
        raise DatabaseError(
            f"{cluster.directory} is there but empty. If its disk is not mounted, mount it; for a new "
            f"database: appliance db init --data-dir {shlex.quote(str(cluster.directory.parent))}"
        )
    cluster.check()


def _children(
    config: Config,
    config_path: Path,
    listening: socket.socket,
    cluster: Cluster | None,
    log_dir: Path | None,
) -> tuple[Child, ...]:
    """In the order of stopping: the server drains first, the database goes last."""
    # An OpenMP thread that waits must not spin: the server, PostgreSQL and clients share the cores.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}

    async def start_server() -> Process:
        return await spawn(
            "server",
            config_path,
            "--listen-fd",
            str(listening.fileno()),
            pass_fds=(listening.fileno(),),
            log_path=log_dir and log_dir / "server.log",
            environment=environment,
        )

    children = [
        Child(
            name="server",
            start=start_server,
            stop_signal=signal.SIGTERM,
            # Streams drain, then finished turns are still being stored while the database is away.
            stop_after_s=config.server.drain_s + config.database.write_retry_s + SERVER_STOP_S,
        ),
        *_engine_children(config, config_path, log_dir, environment),
    ]
    if cluster is not None:
        database = cluster

        async def start_database() -> Process:
            return await database.start(say)

        children.append(
            Child(
                name="database",
                start=start_database,
                stop_signal=signal.SIGINT,  # PostgreSQL's fast shutdown
                stop_after_s=DATABASE_STOP_S,
            )
        )
    return tuple(children)


def _engine_children(
    config: Config, config_path: Path, log_dir: Path | None, environment: dict[str, str]
) -> list[Child]:
    """One process for each of the engines; the configuration file names them all."""
    own = engine_configs(config)

    def starter(name: str, *arguments: str) -> Callable[[], Awaitable[Process]]:
        return lambda: spawn(
            "engine",
            config_path,
            *arguments,
            log_path=log_dir and log_dir / f"{name}.log",
            environment=environment,
        )

    return [
        Child(
            name=engine.paths.engine_name,
            start=starter(
                engine.paths.engine_name,
                *(("--number", str(number)) if config.engine.devices else ()),
            ),
            stop_signal=signal.SIGTERM,
            stop_after_s=ENGINE_STOP_S,
            others_go_on=len(own) > 1,
        )
        for number, engine in enumerate(own)
    ]


async def _run_until_signal(
    supervisor: Supervisor, listening: socket.socket, on_ready: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)
    host, port = listening.getsockname()[:2]
    watching = asyncio.create_task(_announce(host, port, on_ready))
    try:
        await supervisor.run()
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _announce(host: str, port: int, on_ready: Callable[[str], None]) -> None:
    # A socket bound to all addresses is reached through loopback.
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    while not await _is_ready(reachable, port):  # noqa: ASYNC110 - state of another process
        await asyncio.sleep(READY_POLL_S)
    shown = f"[{reachable}]" if ":" in reachable else reachable
    on_ready(f"http://{shown}:{port}")


async def _is_ready(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


@contextmanager
def _folders(config: Config, log_dir: Path | None) -> Iterator[Path]:
    """Make the folders and lock the data folder for this run; yields the one for sockets.

    Where the configured `run_dir` is too long for a socket's address, it is a short one of this run.
    """
    for folder in (config.paths.data_dir, config.paths.run_dir, log_dir):
        if folder is not None:
            _make_private(folder)
    lock = FolderLock(config.paths.data_dir / "appliance.lock", config.paths.data_dir)
    lock.acquire()
    try:
        sockets = [engine.paths.engine_socket for engine in engine_configs(config)]
        if all(len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX for path in sockets):
            yield config.paths.run_dir
            return
        with tempfile.TemporaryDirectory(prefix="appliance-") as short:
            yield Path(short)
    finally:
        lock.release()


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be made: {error.strerror}") from error


def _resolve(config: Config, run_dir: Path, cluster: Cluster | None) -> Config:
    """The configuration with nothing left to decide, as the children read it."""
    database = config.database
    if cluster is not None:
        database = msgspec.structs.replace(database, url=cluster.url())
    paths = msgspec.structs.replace(config.paths, run_dir=run_dir)
    return msgspec.structs.replace(config, database=database, paths=paths)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read: it holds the database's address and key digests."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
