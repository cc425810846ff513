"""`appliance db restore`: the database as it was at a moment, and the way back."""

from __future__ import annotations

import argparse
import shlex
from datetime import datetime
from pathlib import Path

from appliance.cli.db_options import add_folder, cluster_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "restore", help="bring the stopped database to where it was at a moment, or back"
    )
    add_folder(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--from", dest="source", type=Path, metavar="FOLDER", help="where `db backup` has put it"
    )
    what.add_argument(
        "--undo", action="store_true", help="put back the folder that the last restore has kept"
    )
    parser.add_argument(
        "--to",
        type=_moment,
        default=None,
        metavar="TIME",
        help="such as 2026-11-30T15:04:05 (this machine's time) or …T15:04:05.250Z; without it, "
        "the end of what was archived",
    )


def run(options: argparse.Namespace) -> int:
    """Restore it; returns the exit code."""
    import asyncio

    from appliance.cli.terminal import say
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.copies.archive import Archive
    from appliance.dbops.copies.restore import restore, undo

    folder = cluster_folder(options)
    if options.undo:
        swapped = asyncio.run(undo(folder, find_binaries()))
        print(f"{folder} is what it was before; the restored one is kept as {swapped.kept}")
        return 0
    archive = Archive(options.source.absolute())
    done = asyncio.run(restore(folder, find_binaries(), archive, options.to, say))
    moment = "the end of the archive" if options.to is None else options.to.isoformat()
    print(f"{folder} is as it was at {moment}")
    if done.kept is not None:
        print(f"the folder before is kept as {done.kept}; to go back: appliance db restore --undo")
    if not done.archives:
        print(
            f"it is a copy of the database that {archive.folder} belongs to, and archives nothing. To "
            "begin: appliance db backup --into a folder of its own; or, if that database is gone for "
            f"good, appliance db backup --into {shlex.quote(str(archive.folder))} --take-over"
        )
    return 0


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time such as 2026-11-30T15:04:05 or 2026-11-30T15:04:05Z"
        ) from error
