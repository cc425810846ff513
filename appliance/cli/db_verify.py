"""`appliance db verify`: whether a repair has worked, and whether every row is still there.

Never: repairs anything. It takes a handful of transaction IDs and one multixact, to see that it can.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_json, add_target, target_of
from appliance.cli.db_policy import add_limits, limits_of
from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.dbops.repair.maintenance_session import MaintenanceSessions
    from appliance.dbops.repair.verify import Check
    from appliance.dbops.snapshot.snapshot import Snapshot


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser(
        "verify",
        help="whether ages, writes, structures and rows are right",
        description="Proves that every database and table is younger than a repair brings it, that a "
        "transaction ID and a multixact are given out, that tables and b-trees are whole as far as "
        "amcheck looks, and with --against that no row is missing.",
        epilog="Exit code: 0 nothing is wrong, 1 something is (its line begins with WRONG), 2 it cannot "
        "be asked. A line without a mark could not be looked at whole, and proves nothing.",
    )
    add_target(parser)
    add_limits(parser)
    parser.add_argument(
        "--no-probe", action="store_true", help="take no transaction ID and no multixact"
    )
    parser.add_argument(
        "--amcheck-mib",
        type=int,
        default=1024,
        metavar="MIB",
        help="how much to look at with amcheck, where it is installed, in each database (default: 1024)",
    )
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument(
        "--record", type=Path, metavar="FILE", help="count every table's rows and keep the counts"
    )
    rows.add_argument(
        "--against", type=Path, metavar="FILE", help="count again and compare with what was kept"
    )
    parser.add_argument(
        "--hash", action="store_true", help="with --record: hash the rows too, which takes longer"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look and print; returns the exit code (1: something is not right)."""
    import asyncio

    checks = asyncio.run(_verify(options))
    if options.json:
        print(as_json([{"name": one.name, "ok": one.ok, "words": one.words} for one in checks]))
    else:
        print(checks_text(checks))
    return EXIT_FOUND_WRONG if any(check.ok is False for check in checks) else 0


async def _verify(options: argparse.Namespace) -> list[Check]:
    from appliance.dbops.repair.maintenance_session import MaintenanceSessions
    from appliance.dbops.repair.row_counts import check_new
    from appliance.dbops.repair.verify import check_ages, check_structures, probe
    from appliance.dbops.snapshot.inspect import read_snapshot

    if options.amcheck_mib < 0:
        raise ConfigError(f"--amcheck-mib: {options.amcheck_mib} is less than 0")
    policy, target = limits_of(options), target_of(options)
    if options.record is not None:
        check_new(options.record)
    snapshot = await read_snapshot(target.connect)
    sessions = MaintenanceSessions(target, policy.lock_timeout_ms)
    try:
        checks = list(check_ages(snapshot, policy))
        if not options.no_probe:
            checks += [check async for check in probe(sessions)]
        checks += [
            check
            async for check in check_structures(
                snapshot, sessions, bytes_max=options.amcheck_mib << 20
            )
        ]
        checks += await _row_checks(options, snapshot, sessions)
        return checks
    finally:
        await sessions.close()


async def _row_checks(
    options: argparse.Namespace, snapshot: Snapshot, sessions: MaintenanceSessions
) -> list[Check]:
    from appliance.dbops.repair.row_counts import compare, count_rows, read_counts, write_counts
    from appliance.dbops.repair.verify import Check, check_rows

    if options.record is not None:
        counts = await count_rows(snapshot, sessions, digest=options.hash)
        write_counts(options.record, counts)
        unread = [table for table in counts.tables if table.rows is None]
        words = f"{counted(len(counts.tables), 'table')} counted, {len(unread)} cannot be read"
        return [Check(name="rows", ok=None, words=words)]
    if options.against is None:
        return []
    before = read_counts(options.against)
    has_digests = any(table.digest is not None for table in before.tables)
    after = await count_rows(snapshot, sessions, digest=has_digests)
    return list(check_rows(compare(before, after)))


def checks_text(checks: Iterable[Check]) -> str:
    """A line for each; what is wrong begins with WRONG."""
    marks = {True: "ok     ", False: "WRONG  ", None: "       "}
    return "\n".join(
        f"{marks[check.ok]}{visible(check.name)}: {visible(check.words)}" for check in checks
    )
