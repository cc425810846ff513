"""`appliance db`: the table of its subcommands. Never: what one of them does.

A subcommand is a module `appliance.cli.db_NAME` with `add(commands)`, which adds its options, and
`run(options)`, which gives the exit code. They are loaded only for `appliance db`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypeAlias, cast

from appliance.log import complain

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

COMMANDS: Mapping[str, str] = {
    "init": "appliance.cli.db_init",
    "start": "appliance.cli.db_start",
    "stop": "appliance.cli.db_stop",
    "upgrade": "appliance.cli.db_upgrade",
    "backup": "appliance.cli.db_backup",
    "restore": "appliance.cli.db_restore",
    "status": "appliance.cli.db_status",
    "diagnose": "appliance.cli.db_diagnose",
    "metrics": "appliance.cli.db_metrics",
    "plan": "appliance.cli.db_plan",
    "run": "appliance.cli.db_run",
    "verify": "appliance.cli.db_verify",
    "drill": "appliance.cli.db_drill",
    "journal": "appliance.cli.db_journal",
}
"""By name, in the order of the help: the module that has `add` and `run`."""

SCREENS = frozenset({"status", "diagnose", "plan", "run", "verify"})
"""Begin with a line that names the database; others name it in what they say, or on standard error."""


class Subcommand(Protocol):
    """What a module of the table has."""

    add: Callable[[Subparsers], None]
    run: Callable[[argparse.Namespace], int]


def add_db(commands: Subparsers, arguments: Sequence[str]) -> None:
    """The command; its subcommands, chosen as `db_command`, only those that `arguments` may mean."""
    parser = commands.add_parser("db", help="run, watch and repair the database")
    if arguments[:1] != ["db"]:
        return
    chosen = parser.add_subparsers(dest="db_command", required=True, metavar="COMMAND")
    # One that is named needs no other; `--help` and a slip of the finger are shown all of them.
    for name in [name for name in COMMANDS if arguments[1:2] == [name]] or COMMANDS:
        _module(name).add(chosen)


def run_db(options: argparse.Namespace) -> int:
    """Run the chosen subcommand, and say which database it is about. Raises ApplianceError."""
    if "data_dir" in options:
        from appliance.cli.db_choice import choose

        is_default = choose(options)
        if options.db_command != "journal":
            _say_which(options, is_default)
    return _module(options.db_command).run(options)


def _say_which(options: argparse.Namespace, is_default: bool) -> None:
    from appliance.cli.db_choice import chosen

    words = chosen(options, is_default)
    if options.db_command in SCREENS and not options.json:
        print(words, flush=True)
    elif is_default:
        complain(f"appliance: {words}", logging.INFO)


def _module(name: str) -> Subcommand:
    return cast(Subcommand, import_module(COMMANDS[name]))
