"""`appliance db init`: a new, empty database, or a server of one's own made ready for chats.

Never: touches a folder that holds anything, or changes a setting of another's server.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_target, cluster_folder, target_of
from appliance.cli.exit_codes import EXIT_FOUND_WRONG

if TYPE_CHECKING:
    from appliance.dbops.cluster.prepare import Prepared


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "init",
        help="create a new, empty database in a data folder; with --url, look at a server of your own",
    )
    add_target(parser)


def run(options: argparse.Namespace) -> int:
    """Do it; returns the exit code, 1 when a setting of the server endangers chats."""
    import asyncio

    from appliance.cli.terminal import say
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.cluster.cluster import Cluster
    from appliance.dbops.cluster.prepare import prepare

    if options.url is not None:
        prepared = asyncio.run(prepare(target_of(options)))
        print(_text(prepared))
        is_wrong = any(difference.is_needed for difference in prepared.differences)
        return EXIT_FOUND_WRONG if is_wrong else 0
    binaries = find_binaries()
    cluster = Cluster(cluster_folder(options), binaries, purpose="appliance db init")

    async def create() -> None:
        try:
            await cluster.init(say)
        finally:
            await cluster.stop()

    asyncio.run(create())
    print(f"PostgreSQL {binaries.version} has a new database in {cluster.directory}")
    return 0


def _text(prepared: Prepared) -> str:
    lines = [f"PostgreSQL {prepared.version}: the server makes the tables when it first starts"]
    for name, reason in prepared.missing_extensions.items():
        lines.append(f"missing   {name}, which a repair may need: {reason}")
    for found in prepared.differences:
        kind = "WRONG    " if found.is_needed else "differs  "
        lines.append(
            f"{kind} {found.name} is {found.value}, not {found.recommended}: {found.reason}"
        )
    return "\n".join(lines)
