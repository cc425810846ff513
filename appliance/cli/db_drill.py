"""`appliance db drill`: rehearse a repair on a throw-away cluster. Never: touches one that exists."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.cli.db import Subparsers
    from appliance.dbops.cluster.binaries import Binaries
    from appliance.dbops.drill.rehearsal import Rehearsed

DEFAULT = ("plain",)


def add(commands: Subparsers) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "drill",
        help="rehearse a repair on a throw-away cluster",
        description="Makes a throw-away cluster, drives it into a named situation in which it refuses "
        "writes, repairs it and reports times. Nothing that exists is touched.",
    )
    parser.add_argument(
        "situations", nargs="*", metavar="SITUATION", help="by default: plain; `all` is every one"
    )
    parser.add_argument("--list", action="store_true", help="name every situation, and do nothing")
    parser.add_argument(
        "--hold",
        action="store_true",
        help="repair nothing: leave one situation running for you to repair, until Ctrl-C",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="make the clusters here, and keep them"
    )
    parser.add_argument(
        "--version-bin",
        type=Path,
        metavar="DIR",
        help="the programs of another PostgreSQL, such as /usr/lib/postgresql/15/bin",
    )


def run(options: argparse.Namespace) -> int:
    """List, hold or rehearse; returns the exit code. Raises ApplianceError."""
    from appliance.dbops.drill.registry import SUMMARIES, situation

    if options.list:
        width = max(map(len, SUMMARIES))
        print("\n".join(f"{name:<{width}}  {summary}" for name, summary in SUMMARIES.items()))
        return 0
    names = tuple(options.situations) or DEFAULT
    if "all" in names:
        names = tuple(SUMMARIES)
    for name in names:
        situation(name)
    if options.hold and len(names) != 1:
        raise ConfigError("--hold is for one situation at a time")
    folder = _new_folder(options.keep)
    try:
        if options.hold:
            from appliance.cli.db_drill_hold import hold

            return asyncio.run(hold(names[0], folder, _binaries(options.version_bin)))
        return asyncio.run(_rehearse(names, folder, _binaries(options.version_bin)))
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _binaries(folder: Path | None) -> Binaries:
    from appliance.dbops.cluster.binaries import binaries_in, find_binaries

    return find_binaries() if folder is None else binaries_in(folder)


def _new_folder(keep: Path | None) -> Path:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="appliance-drill-"))
        # As root the server runs as another user, who has to get here; the data folder in it is closed.
        folder.chmod(0o755)
        return folder
    if keep.exists() and any(keep.iterdir()):
        raise ConfigError(f"--keep {keep} is not empty: a drill needs a folder of its own")
    keep.mkdir(parents=True, exist_ok=True)
    return keep


async def _rehearse(names: Sequence[str], folder: Path, binaries: Binaries) -> int:
    """Each situation on a cluster of its own, with a line about it; 1 when one was not repaired."""
    from appliance.dbops.drill.drill import Drill
    from appliance.dbops.drill.registry import situation
    from appliance.dbops.drill.rehearsal import rehearse
    from appliance.dbops.drill.throwaway import ThrowAway, silent

    print(f"PostgreSQL {binaries.version}, in {folder}")
    template = ThrowAway(folder / "template", binaries)
    await template.create()
    width = max(map(len, names))
    print(f"{'situation':<{width}}  made  diagnosed  writes back  all done  outcome", flush=True)
    is_good = True
    for name in names:
        began = time.monotonic()
        drill = Drill(await template.copy_to(folder / name))
        try:
            what = situation(name)
            await drill.drive(what, silent)
            made_s = time.monotonic() - began
            done = await rehearse(drill, what, folder / f"{name}.state")
        finally:
            await drill.end_actors()
            await drill.cluster.stop()
        back = "never" if done.writes_back_s is None else f"{done.writes_back_s:.1f} s"
        print(
            f"{name:<{width}}  {made_s:>3.1f}s  {done.diagnosed_s:>8.2f}s  {back:>11}  "
            f"{done.repaired_s:>7.1f}s  {_words(done)}",
            flush=True,
        )
        is_good = is_good and done.good
    return 0 if is_good else EXIT_FOUND_WRONG


def _words(done: Rehearsed) -> str:
    if done.writes_back_s is None:
        return f"not repaired: {done.outcome.stopped or 'steps are left'}"
    left = [] if done.outcome.is_complete else [done.outcome.stopped or "steps are left"]
    faults = [*left, *done.changed, *(f"{one.name}: {one.words}" for one in done.too_old)]
    restarted = ", one restart" if done.restarted else ""
    return "; ".join(faults) or f"no row lost{restarted}"
