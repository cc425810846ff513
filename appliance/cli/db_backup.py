"""`appliance db backup`: a base backup of the running database, and its WAL from now on."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.db_options import add_folder, cluster_folder

KEEP_MAX = 1000


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "backup", help="back the running database up, so that any later moment can be restored"
    )
    add_folder(parser)
    parser.add_argument(
        "--into", type=Path, required=True, metavar="FOLDER", help="on another disk, if possible"
    )
    parser.add_argument(
        "--keep",
        type=_count,
        default=None,
        metavar="N",
        help="afterwards remove all but the newest N base backups, and the WAL before them",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="where FOLDER has the backups of the database in whose place this one is now (after a "
        "restore elsewhere, or an upgrade): move them into a folder of their own in it, and begin anew",
    )


def run(options: argparse.Namespace) -> int:
    """Make it; returns the exit code."""
    import asyncio

    from appliance.cli.terminal import say
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.copies.archive import Archive
    from appliance.dbops.copies.backup import back_up

    archive = Archive(options.into.absolute())
    made = asyncio.run(
        back_up(
            cluster_folder(options),
            find_binaries(),
            archive,
            options.keep,
            say,
            take_over=options.take_over,
        )
    )
    if made.aside is not None:
        print(f"the backups of the database before this one are in {made.aside}")
    if made.began_archiving:
        print(f"every change is copied to {archive.wal} from now on")
    print(f"base backup {made.base.path} is verified")
    if made.removed:
        print(f"removed {len(made.removed)} files and folders that it makes superfluous")
    return 0


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= KEEP_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {KEEP_MAX}")
    return int(text)
