"""Time until writes return: the plan's stage 1 beside the VACUUM that the server's hint asks for.

One cluster in the stop, of which a tenth is old and the rest a billion transactions young, copied for
each way. `python -m bench.partial_vacuum --gigabytes 4` takes 12 GB of disk while it runs.
`--cold` (as root) empties the kernel's page cache before each way: a cluster of the size that gets into
the stop does not fit into memory, and one of 4 GB does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

from appliance.dbops.cluster.binaries import Binaries, binaries_in, find_binaries
from appliance.dbops.drill.drill import DATABASE, Drill
from appliance.dbops.drill.probe import probe
from appliance.dbops.drill.rehearsal import rehearse
from appliance.dbops.drill.situation import Situation
from appliance.dbops.drill.throwaway import ThrowAway
from appliance.dbops.plan.policy import Policy

OLD_SHARE = 10
TABLES = 8
ROW_BYTES = 1000
"""Of a row on its page: 900 of text, the header and the line pointer."""

STAGE_1 = Policy(last_stage=1, disk_floor_bytes=0)
POLL_S = 0.05
TERABYTE = 1e12


class TenthOld(Situation):
    """Tables of `total_bytes`, of which a tenth goes the whole way, and the rest from halfway on."""

    name = "tenth-old"
    summary = "a tenth of the bytes holds the horizon"
    kept_old = frozenset({DATABASE})

    def __init__(self, total_bytes: int) -> None:
        self.old_bytes = total_bytes // OLD_SHARE
        self._young_bytes = total_bytes - self.old_bytes

    async def plant(self, drill: Drill) -> None:
        """The old tenth."""
        await drill.execute("ALTER SYSTEM SET fsync = on")
        await fill(drill, "old", self.old_bytes)

    async def halfway(self, drill: Drill) -> None:
        """The young rest."""
        await fill(drill, "young", self._young_bytes)


async def fill(drill: Drill, kind: str, total_bytes: int) -> None:
    """Tables of so many bytes together, with an index each."""
    rows = total_bytes // TABLES // ROW_BYTES
    for number in range(TABLES):
        name = f"{kind}_{number}"
        await drill.execute(
            f"CREATE TABLE {name} AS SELECT n, repeat(md5((n * {number + 1})::text), 28) AS body "
            f"FROM generate_series(1, {rows}) AS n; CREATE INDEX ON {name} (n)"
        )


async def vacuum_everything(drill: Drill) -> float:
    """Seconds until writes return when every database is vacuumed, as the hint asks."""
    began = time.monotonic()
    for database in (DATABASE, "postgres", "template1"):
        # TRUNCATE OFF is no part of the hint; without it the VACUUM of a young table may fail.
        await drill.execute_each(database, "VACUUM (TRUNCATE OFF)")
    await drill.execute_each(
        "postgres", "ALTER SYSTEM SET autovacuum_naptime = '1s'", "SELECT pg_reload_conf()"
    )
    while True:
        if (await probe(drill.cluster.url)).back:
            return time.monotonic() - began
        await asyncio.sleep(POLL_S)


def forget_pages() -> None:
    """Empty the kernel's page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


async def measure(total_bytes: int, binaries: Binaries, folder: Path, *, is_cold: bool) -> None:
    """Make the cluster, repair a copy in each way, print the times."""
    first = Drill(ThrowAway(folder / "first", binaries))
    await first.cluster.create()
    what = TenthOld(total_bytes)
    await first.drive(what, lambda words: print(f"  {words}", flush=True))
    await first.cluster.stop()
    copies = [Drill(await first.cluster.copy_to(folder / name)) for name in ("partial", "plain")]
    partial, plain = copies
    partial.counts = first.counts
    if is_cold:
        forget_pages()
    await partial.cluster.start()
    done = await rehearse(partial, what, folder / "state", STAGE_1)
    assert done.writes_back_s is not None, done.outcome
    assert done.changed == (), done.changed
    await partial.close()
    if is_cold:
        forget_pages()
    await plain.cluster.start()
    plain_s = await vacuum_everything(plain)
    await plain.close()
    await first.close()
    temperature = "nothing of it in the page cache" if is_cold else "in the page cache"
    rate = what.old_bytes / done.writes_back_s
    print(
        f"PostgreSQL {binaries.version}, {total_bytes / 1e9:.1f} GB, a tenth of it old, {temperature}"
    )
    print(f"  VACUUM of every database   {plain_s:8.1f} s until writes return")
    times = plain_s / done.writes_back_s
    print(f"  appliance db run, stage 1  {done.writes_back_s:8.1f} s, {times:.1f} times shorter")
    print(
        f"  rate {rate / 1e6:.0f} MB/s: 1 TB that holds the horizon takes {TERABYTE / rate / 3600:.1f} h,"
    )
    print(f"  a tenth of 1 TB {TERABYTE / OLD_SHARE / rate / 60:.0f} min")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument(
        "--version-bin", type=Path, default=None, help="the programs of another version"
    )
    parser.add_argument("--cold", action="store_true", help="with an empty page cache, as root")
    options = parser.parse_args()
    binaries = find_binaries() if options.version_bin is None else binaries_in(options.version_bin)
    folder = Path(tempfile.mkdtemp(prefix="appliance-bench-"))
    folder.chmod(0o755)
    try:
        total_bytes = int(options.gigabytes * 1e9)
        asyncio.run(measure(total_bytes, binaries, folder, is_cold=options.cold))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
