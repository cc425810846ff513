"""`appliance db stop`: ends a database that runs alone. Never: stops one under a running appliance."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_folder, cluster_folder
from appliance.errors import DatabaseError, NotRunning

if TYPE_CHECKING:
    from appliance.dbops.folder import FolderLock
    from appliance.file_lock import Holder

WAIT_S = 90.0
POLL_S = 0.05


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser("stop", help="stop a database that was started with `db start`")
    add_folder(parser)


def run(options: argparse.Namespace) -> int:
    """Stop it, fast; returns when it has ended."""
    from appliance.dbops.cluster.cluster import cluster_lock

    folder = cluster_folder(options)
    if not folder.is_dir():
        raise DatabaseError(f"{folder} does not exist: there is no database to stop")
    lock = cluster_lock(folder, "appliance db stop")
    holder = lock.holder()
    if holder is not None:
        _stop_holder(folder, lock, holder)
        print(f"the database of {folder} has stopped")
        return 0
    lock.acquire()
    try:
        if not _stop_orphan(folder):
            raise NotRunning(f"no database runs on {folder}")
    finally:
        lock.release()
    print(f"the database of {folder} has stopped")
    return 0


def _stop_holder(folder: Path, lock: FolderLock, holder: Holder) -> None:
    """Ask the process that stays with the server; it stops the server and then ends."""
    from appliance.cli.db_start import PURPOSE

    if holder.purpose != PURPOSE or holder.pid is None:
        raise DatabaseError(f"{folder} is in use by {holder}: stop that")
    try:
        # The lock's file only says so, and another user may own it.
        if not lock.is_open_in(holder.pid) and lock.holder() is not None:
            raise DatabaseError(f"{folder} is in use, but not by {holder}, as {lock.path} has it")
        os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # It ended by itself between the look and the signal.
    except PermissionError as error:
        raise DatabaseError(
            f"process {holder.pid}, which runs the database, is another user's"
        ) from error
    deadline = time.monotonic() + WAIT_S
    while lock.holder() is not None:
        if time.monotonic() > deadline:
            raise DatabaseError(f"process {holder.pid} has not stopped within {WAIT_S:.0f} s")
        time.sleep(POLL_S)


def _stop_orphan(folder: Path) -> bool:
    """End a server that nobody stays with; False when there is none."""
    import asyncio

    from appliance.dbops.cluster import leftover
    from appliance.dbops.cluster.account import account_of_cluster

    pids = leftover.processes_in(folder, account_of_cluster(folder))
    if not pids:
        return False
    if not asyncio.run(leftover.stop_processes(pids, leftover.recorded_pid(folder))):
        raise DatabaseError(f"processes {pids} use {folder} and cannot be stopped")
    return True
