"""How long `appliance db status` and `diagnose` take on a cluster of many tables, all of them old.

`python -m bench.many_tables --tables 10000` (1.5 GB of disk while it runs) prints for each command the
median of several calls, as a shell sees them, what of that is Python's start, and the server's share.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from appliance.dbops.cluster.binaries import Binaries, binaries_in, find_binaries
from appliance.dbops.drill.counters import move_to_the_brink
from appliance.dbops.drill.drill import DATABASE, Drill
from appliance.dbops.drill.situation import Counter
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.snapshot.inspect import read_snapshot
from appliance.dbops.target import Target

CALLS = 5
TABLES_EACH = 500
"""In one transaction: each table takes three locks."""

WORDS = (("status",), ("status", "--json"), ("diagnose",), ("diagnose", "--json"))


async def make(drill: Drill, tables: int, *, old: bool) -> None:
    """A running cluster with so many tables, each with a TOAST table and an index."""
    await drill.cluster.create()
    await drill.cluster.start()
    await drill.execute_each("postgres", f"CREATE DATABASE {DATABASE}")
    for start in range(0, tables, TABLES_EACH):
        end = min(start + TABLES_EACH, tables)
        await drill.execute(
            f"DO $$ BEGIN FOR n IN {start}..{end - 1} LOOP EXECUTE format("
            "'CREATE TABLE many_%s (id int PRIMARY KEY, body text)', n); END LOOP; END $$"
        )
    await drill.cluster.stop()
    if old:
        await move_to_the_brink(drill.cluster, Counter.XIDS)
    await drill.cluster.start()


def timed(arguments: Sequence[str]) -> float:
    """Seconds of one command, from its start to its end."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode in (0, 1, 2), done.stderr
    assert not done.stderr, done.stderr
    return time.monotonic() - began


async def measure(tables: int, binaries: Binaries, folder: Path, *, old: bool) -> None:
    """Make the cluster, call each command, print the times."""
    drill = Drill(ThrowAway(folder / "cluster", binaries))
    try:
        await make(drill, tables, old=old)
        target = Target(directory=drill.cluster.directory)
        began = time.monotonic()
        snapshot = await read_snapshot(target.connect)
        reading_s = time.monotonic() - began
        relations = sum(len(one.relations or ()) for one in snapshot.databases)
        age = "old" if old else "young"
        print(
            f"PostgreSQL {binaries.version}, {tables:,} {age} tables, {relations:,} relations read"
        )
        print(f"  a first snapshot  {reading_s:6.2f} s")
        print(f"  `python -c pass`  {median(timed(('-c', 'pass')) for _ in range(CALLS)):6.2f} s")
        for words in WORDS:
            command = ("-m", "appliance.cli.main", "db", *words)
            place = ("--data-dir", str(drill.cluster.directory))
            times = [timed((*command, *place)) for _ in range(CALLS)]
            print(
                f"  db {' '.join(words):<16} {median(times):6.2f} s"
                f"   ({min(times):.2f} to {max(times):.2f})",
                flush=True,
            )
    finally:
        await drill.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--young", action="store_true", help="leave them young")
    parser.add_argument(
        "--version-bin", type=Path, default=None, help="the programs of another version"
    )
    options = parser.parse_args()
    binaries = find_binaries() if options.version_bin is None else binaries_in(options.version_bin)
    folder = Path(tempfile.mkdtemp(prefix="appliance-bench-"))
    folder.chmod(0o755)
    try:
        asyncio.run(measure(options.tables, binaries, folder, old=not options.young))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
