"""`appliance cache`: the table of its subcommands. Never: what one of them does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeAlias

from appliance.cli.cache_audit import add_audit, run_audit
from appliance.cli.cache_explain import add_explain, run_explain
from appliance.cli.cache_pins import add_pin, add_unpin, run_pin, run_unpin
from appliance.cli.cache_purge import add_purge, run_purge
from appliance.cli.cache_simulate import add_simulate, run_simulate
from appliance.cli.cache_stats import add_stats, run_stats

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

COMMANDS: Mapping[str, tuple[Callable[[Subparsers], None], Callable[[argparse.Namespace], int]]] = {
    "stats": (add_stats, run_stats),
    "explain": (add_explain, run_explain),
    "pin": (add_pin, run_pin),
    "unpin": (add_unpin, run_unpin),
    "purge": (add_purge, run_purge),
    "audit": (add_audit, run_audit),
    "simulate": (add_simulate, run_simulate),
}
"""By name: what adds the subcommand with its options, and what runs it and gives the exit code."""


def add_cache(commands: Subparsers) -> None:
    """The command and its subcommands, with `cache_command` as the name that was chosen."""
    parser = commands.add_parser("cache", help="see, prove and change what is cached")
    chosen = parser.add_subparsers(dest="cache_command", required=True, metavar="COMMAND")
    for add, _ in COMMANDS.values():
        add(chosen)


def run_cache(options: argparse.Namespace) -> int:
    """Run the chosen subcommand. Raises ApplianceError."""
    _, run = COMMANDS[options.cache_command]
    return run(options)
