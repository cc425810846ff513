"""`appliance db init`: a new, empty database. Never: touches a folder that holds anything."""

from __future__ import annotations

import argparse

from appliance.cli.db_options import add_folder, cluster_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser("init", help="create a new, empty database in a data folder")
    add_folder(parser)


def run(options: argparse.Namespace) -> int:
    """Create it; returns the exit code."""
    import asyncio

    from appliance.cli.terminal import console, say
    from appliance.dbops.binaries import find_binaries
    from appliance.dbops.cluster import Cluster

    binaries = find_binaries()
    cluster = Cluster(cluster_folder(options), binaries, purpose="appliance db init")

    async def create() -> None:
        try:
            await cluster.init(say)
        finally:
            await cluster.stop()

    asyncio.run(create())
    console.print(f"PostgreSQL {binaries.version} has a new database in {cluster.directory}")
    return 0
