"""`appliance experiment`: the table of its subcommands. Never: what one of them does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeAlias

from appliance.cli.experiment_check import add_check, run_check
from appliance.cli.experiment_deeds import (
    add_create,
    add_lint,
    add_pause,
    add_start,
    add_status,
    add_withdraw,
    run_create,
    run_lint,
    run_pause,
    run_start,
    run_status,
    run_withdraw,
)
from appliance.cli.experiment_plan import add_plan, run_plan
from appliance.cli.experiment_report import (
    add_report,
    add_ship,
    add_stop,
    run_report,
    run_ship,
    run_stop,
)
from appliance.cli.experiment_switchback import add_switchback, run_switchback

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

COMMANDS: Mapping[str, tuple[Callable[[Subparsers], None], Callable[[argparse.Namespace], int]]] = {
    "lint": (add_lint, run_lint),
    "plan": (add_plan, run_plan),
    "create": (add_create, run_create),
    "start": (add_start, run_start),
    "status": (add_status, run_status),
    "report": (add_report, run_report),
    "check": (add_check, run_check),
    "pause": (add_pause, run_pause),
    "ship": (add_ship, run_ship),
    "stop": (add_stop, run_stop),
    "withdraw": (add_withdraw, run_withdraw),
    "switchback": (add_switchback, run_switchback),
}
"""By name, in the order of an experiment's life: what adds a subcommand with its options, and what
runs it and gives the exit code."""


def add_experiment(commands: Subparsers) -> None:
    """The command and its subcommands, with `experiment_command` as the name that was chosen."""
    parser = commands.add_parser(
        "experiment", help="give users different versions, and see what that did"
    )
    chosen = parser.add_subparsers(dest="experiment_command", required=True, metavar="COMMAND")
    for add, _ in COMMANDS.values():
        add(chosen)


def run_experiment(options: argparse.Namespace) -> int:
    """Run the chosen subcommand. Raises ApplianceError."""
    _, run = COMMANDS[options.experiment_command]
    return run(options)
