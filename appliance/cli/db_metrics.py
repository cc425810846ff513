"""`appliance db metrics`: one scrape of the database for Prometheus, and the alert rules for it.

For the textfile collector of node_exporter, or any program that runs commands: it works while the server
is down. Never: reads a table, or tells a statement's text.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from appliance.cli.db_options import add_target, target_of
from appliance.cli.exit_codes import EXIT_BAD_INPUT
from appliance.durable import replace_file
from appliance.errors import DatabaseError, NotRunning
from appliance.log import complain


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = commands.add_parser("metrics", help="the database's state as Prometheus text")
    add_target(parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--output",
        type=Path,
        default=None,
        metavar="FILE.prom",
        help="replace this file (for node_exporter's textfile collector) in place of printing",
    )
    chosen.add_argument(
        "--alert-rules", action="store_true", help="print the rules file for these metrics instead"
    )


def run(options: argparse.Namespace) -> int:
    """Print or write; a database that cannot be asked is told as `appliance_db_up 0`, exit code 2."""
    from appliance.dbops.monitoring.backups import read_backups
    from appliance.dbops.monitoring.metrics import alert_rules, exposition
    from appliance.dbops.snapshot.inspect import read_cluster

    if options.alert_rules:
        print(alert_rules(), end="")
        return 0
    target = target_of(options)
    try:
        snapshot = asyncio.run(read_cluster(target.connect))
    except (DatabaseError, NotRunning) as error:
        complain(f"appliance: {error.message}")
        snapshot = None
    text = exposition(snapshot, read_backups(target.directory))
    if options.output is None:
        print(text, end="")
    else:
        # Whoever runs node_exporter reads it.
        replace_file(options.output, text.encode(), mode=0o644)
    return 0 if snapshot is not None else EXIT_BAD_INPUT
