"""A program for a test: makes a cluster on a disk that loses its power at once, and starts it then.

In a process of its own: the disk is mounted in a namespace that ends with it. Prints `started`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from appliance.dbops.cluster.binaries import find_binaries
from appliance.dbops.cluster.cluster import Cluster
from bench.survival.disk import SmallDisk
from tests.postgres_fixtures import quiet

DISK_BYTES = 1 << 29


async def run(folder: Path) -> None:
    with SmallDisk(folder / "image", folder / "disk", size_bytes=DISK_BYTES) as disk:
        cluster = Cluster(disk.folder / "postgres", find_binaries())
        await cluster.init(quiet)
        await cluster.stop()
        disk.cut()
        disk.restore()
        again = Cluster(disk.folder / "postgres", find_binaries())
        await again.start(quiet)
        print("started")
        await again.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as name:
        place = Path(name)
        place.chmod(0o755)
        asyncio.run(run(place))
