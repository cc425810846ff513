"""`appliance db upgrade`: a data folder of an older PostgreSQL, and the way back."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_folder, cluster_folder

if TYPE_CHECKING:
    from appliance.dbops.copies.kept import Swapped


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "upgrade", help="move a data folder to this appliance's version of PostgreSQL, or back"
    )
    add_folder(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--old-bin",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="where the old version's programs are, if not where packages put them",
    )
    way.add_argument(
        "--from-url",
        default=None,
        metavar="URL",
        help="copy all databases of this running PostgreSQL into a new data folder instead",
    )
    way.add_argument(
        "--rollback",
        action="store_true",
        help="put back the folder that the last upgrade has kept",
    )


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; returns the exit code."""
    import asyncio

    from appliance.cli.terminal import say
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.copies.load_dump import load_dump
    from appliance.dbops.copies.ownership import read_mark
    from appliance.dbops.copies.upgrade import roll_back, upgrade

    folder = cluster_folder(options)
    if options.rollback:
        swapped = roll_back(folder)
        _report(swapped, "What was written since the upgrade is in the kept folder alone.")
        return 0
    binaries = find_binaries()
    if options.from_url is not None:
        asyncio.run(load_dump(folder, binaries, options.from_url, say))
        print(f"{folder} has all databases of the server, on PostgreSQL {binaries.version}")
        return 0
    swapped = asyncio.run(upgrade(folder, binaries, options.old_bin, say))
    mark = read_mark(swapped.kept)
    again = "--into FOLDER" if mark is None else f"--into {shlex.quote(mark.archive)} --take-over"
    _report(
        swapped,
        "Settings made with ALTER SYSTEM are in the kept folder's postgresql.auto.conf. Nothing is "
        f"archived until there is a backup of this version: appliance db backup {again}\n"
        "To go back: appliance db upgrade --rollback. Remove the kept folder when you are sure.",
    )
    return 0


def _report(swapped: Swapped, more: str) -> None:
    print(
        f"{swapped.directory} is of PostgreSQL {swapped.major} now; the folder of PostgreSQL "
        f"{swapped.kept_major} is kept as {swapped.kept}\n{more}"
    )
