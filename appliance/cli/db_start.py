"""`appliance db start`: the database alone, beside no appliance, on the terminal or in the background.

In the background a process of our own stays with the server, as on the terminal: it holds the folder's
lock, starts a server that dies again, and ends with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_folder, cluster_folder
from appliance.errors import DatabaseError

if TYPE_CHECKING:
    from appliance.dbops.cluster.cluster import Cluster

PURPOSE = "appliance db start"
STOP_S = 30.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser("start", help="run the database alone, without the appliance")
    add_folder(parser)
    parser.add_argument(
        "--foreground", action="store_true", help="stay on the terminal until Ctrl-C"
    )
    parser.add_argument("--ready-fd", type=int, default=None, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Start it; returns when it takes connections, or in the foreground when it has been stopped."""
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.cluster.cluster import Cluster

    cluster = Cluster(cluster_folder(options), find_binaries(), purpose=PURPOSE)
    cluster.check()
    if options.foreground:
        return _foreground(cluster, options.ready_fd)
    return _background(cluster)


def _background(cluster: Cluster) -> int:
    """Start this command again in a session of its own and wait for its word."""
    log_path = cluster.directory.with_name(f"{cluster.directory.name}.run.log")
    log_path.unlink(missing_ok=True)  # Another user's could not be opened.
    reading, writing = os.pipe()
    with log_path.open("wb") as output:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "appliance.cli.main", "db", "start", "--foreground"),
                *("--data-dir", str(cluster.directory), "--ready-fd", str(writing)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as words:
        url = words.read()
    if not url:
        child.wait()
        lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise DatabaseError((lines or ["it did not start"])[-1].removeprefix("appliance: "))
    print(f"the database of {cluster.directory} runs (process {child.pid}); reach it with\n  {url}")
    return 0


def _foreground(cluster: Cluster, ready_fd: int | None) -> int:
    import asyncio

    from appliance.cli.supervisor import Child, Process, Supervisor
    from appliance.cli.terminal import say

    told = [ready_fd]

    async def start() -> Process:
        process = await cluster.start(say)
        descriptor = told.pop() if told else None
        if descriptor is not None:
            with os.fdopen(descriptor, "w", encoding="utf-8") as parent:
                parent.write(cluster.url())
        else:
            say(f"the database runs; reach it with {cluster.url()}")
        return process

    async def keep() -> None:
        child = Child(name="database", start=start, stop_signal=signal.SIGINT, stop_after_s=STOP_S)
        supervisor = Supervisor((child,), say)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, supervisor.stop)
        try:
            await supervisor.run()
        finally:
            await cluster.stop()

    asyncio.run(keep())
    return 0
