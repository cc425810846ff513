"""`appliance db diagnose`: every blocker, and the exact action against it. Never: changes the database.

Exit code: 0 nothing holds it back, 1 something does, 2 it is critical or cannot be asked.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from appliance.cli.db_options import add_json, add_state, add_target, target_of

if TYPE_CHECKING:
    from appliance.dbops.blockers.blockers import Watch
    from appliance.dbops.blockers.damage import Damage
    from appliance.dbops.snapshot.snapshot import Snapshot
    from appliance.dbops.target import Target

DAMAGE_SECONDS = 60.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser("diagnose", help="every blocker, and the exact action against it")
    add_target(parser)
    add_state(parser)
    add_json(parser)
    parser.add_argument(
        "--older-than",
        type=float,
        default=None,
        metavar="SECONDS",
        help="tell transactions from this age on (default: idle ones and prepared ones after 300 s, "
        "others after 3600 s, all from 10 million XIDs on)",
    )
    parser.add_argument(
        "--age",
        type=int,
        default=None,
        metavar="IDS",
        help="tell databases and tables from this age on (default: where autovacuum lags)",
    )
    parser.add_argument(
        "--damage",
        action="store_true",
        help="also look for damaged pages and indexes: reads the server's log and the old tables",
    )
    parser.add_argument(
        "--damage-seconds",
        type=float,
        default=DAMAGE_SECONDS,
        metavar="SECONDS",
        help=f"how long to look for them (default: {DAMAGE_SECONDS:g})",
    )


def run(options: argparse.Namespace) -> int:
    """Read and print; returns the severity."""
    from appliance.cli.db_json import diagnosis_json
    from appliance.cli.db_status import rates
    from appliance.cli.db_text import diagnosis_text
    from appliance.cli.plain_text import as_json
    from appliance.dbops.blockers.blockers import blockers
    from appliance.dbops.monitoring.status import severity_of

    watch = _watch(options)
    snapshot, damages = asyncio.run(_read(target_of(options), options, watch))
    known = rates(options, snapshot)
    notes = list(known.notes)
    found = blockers(snapshot, watch, rate=known.newest, damages=damages)
    severity = severity_of(snapshot, found)
    if options.json:
        print(as_json(diagnosis_json(snapshot, severity.name.lower(), found, notes)))
    else:
        print(diagnosis_text(snapshot, found, notes))
    return severity


def _watch(options: argparse.Namespace) -> Watch:
    from appliance.dbops.blockers.blockers import Watch

    if options.older_than is None:
        return Watch(relation_age_min=options.age)
    return Watch(
        relation_age_min=options.age,
        idle_s_min=options.older_than,
        transaction_s_min=options.older_than,
        prepared_s_min=options.older_than,
    )


async def _read(
    target: Target, options: argparse.Namespace, watch: Watch
) -> tuple[Snapshot, tuple[Damage, ...]]:
    from dataclasses import replace

    from appliance.dbops.blockers.damage_probe import probe_damage
    from appliance.dbops.snapshot.inspect import read_snapshot

    snapshot = await read_snapshot(target.connect)
    if not options.damage:
        return snapshot, ()
    damages, missing = await probe_damage(
        target, snapshot, watch.old(snapshot), seconds_max=options.damage_seconds
    )
    return replace(snapshot, missing=(*snapshot.missing, *missing)), damages
