"""`appliance db journal replay`: what waits, or was kept aside, into the database.

For when no server runs: a running one has the journal and replays it by itself. Never: drops an entry.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.plain_text import as_json
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.config import DatabaseConfig, Paths
    from appliance.store.journal import Journal

WAIT_S = 30.0
"""How long a database that takes nothing is tried before the rest is left where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a replay did. Of a file that was named: `put_back` entries were taken out of it, `rest_bytes`
    are left in it."""

    stored: int
    refused: int
    left: int
    put_back: int | None = None
    rest_bytes: int | None = None

    def fields(self) -> dict[str, object]:
        """As JSON says it."""
        told = {name: getattr(self, name) for name in Done.__slots__}
        return {name: value for name, value in told.items() if value is not None}

    def lines(self, aside: Path | None) -> Iterator[str]:
        """As a person reads it."""
        if aside is not None:
            yield f"{self.put_back} entries taken out of {aside}"
        if self.rest_bytes:
            yield f"  {self.rest_bytes} bytes of it are no entry, and stay there"
        yield f"{self.stored} entries stored, {self.refused} refused for good, {self.left} left"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it takes besides the place and --json."""
    parser.add_argument("--url", default=None, help="the database (default: the configuration's)")
    parser.add_argument(
        "--from",
        type=Path,
        default=None,
        dest="aside",
        metavar="FILE",
        help="take the entries of FILE back into the journal first: of refused.jsonl, a damaged-* or "
        "torn-* file, or a journal that was moved away; what is no entry stays in it",
    )
    parser.add_argument(
        "--wait-s",
        type=float,
        default=WAIT_S,
        metavar="SECONDS",
        help=f"how long to try a database that takes nothing (default: {WAIT_S:g})",
    )


def run(options: argparse.Namespace, paths: Paths, database: DatabaseConfig) -> int:
    """Replay and tell. Raises JournalHeld, JournalDamaged, JournalForeign, ConfigError, OSError, and
    StorageUnavailable when entries were to be taken back and the database is away."""
    aside: Path | None = options.aside
    if aside is not None:
        _check(aside, paths.journal_dir)
    elif not paths.journal_dir.exists():
        print(f"{paths.journal_dir}: there is no journal", file=sys.stderr)
        return 0
    url = options.url or database.url or _embedded_url(paths)
    done = asyncio.run(_replay(url, paths, database, aside, options.wait_s))
    print(as_json(done.fields()) if options.json else "\n".join(done.lines(aside)))
    return EXIT_FOUND_WRONG if done.left or done.refused or done.rest_bytes else 0


def _check(aside: Path, folder: Path) -> None:
    from appliance.store.journal_file import FILE_NAME

    if not aside.is_file():
        raise ConfigError(f"--from: {aside} is no file")
    if aside.resolve() == (folder / FILE_NAME).resolve():
        raise ConfigError(
            f"--from: {aside} is the journal itself: without --from its entries are replayed"
        )


async def _replay(
    url: str, paths: Paths, database: DatabaseConfig, aside: Path | None, wait_s: float
) -> Done:
    from appliance.maintenance import is_on
    from appliance.store.journal import Journal
    from appliance.store.pool import connect
    from appliance.store.replay import Replay
    from appliance.store.write_gate import WriteGate

    pool = await connect(url, database)
    journal = Journal(paths.journal_dir, bytes_max=database.journal_bytes)
    try:
        gate = WriteGate(in_maintenance=lambda: is_on(paths.data_dir))
        replay = Replay(journal, pool, gate)
        put_back = rest_bytes = None
        if aside is not None:
            # Only when it is known where they belong: they are then held for no other database.
            await replay.bind(budget_s=wait_s)
            put_back, rest_bytes = await _put_back(journal, aside)
        done = await replay.drain(wait_s)
        return Done(
            stored=done.entries,
            refused=done.refused,
            left=len(journal.overlay),
            put_back=put_back,
            rest_bytes=rest_bytes,
        )
    finally:
        await journal.close()
        pool.terminate()


async def _put_back(journal: Journal, aside: Path) -> tuple[int, int]:
    """(entries taken out of the file, bytes that are left in it)."""
    from appliance.store.journal_aside import leave_rest, read_aside

    found = read_aside(aside, key=journal.key)
    if found.entries:
        await journal.put_back(found.entries)
        leave_rest(aside, found.rest)
    return len(found.entries), len(found.rest)


def _embedded_url(paths: Paths) -> str:
    from appliance.dbops.cluster.binaries import find_binaries
    from appliance.dbops.cluster.cluster import Cluster

    return Cluster(paths.postgres_dir, find_binaries()).url()
