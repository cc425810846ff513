"""`appliance prompt`: the table of its subcommands. Never: what one of them does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TypeAlias

from appliance.cli.prompt_compare import add_diff, add_replay, run_diff, run_replay
from appliance.cli.prompt_explain import add_explain, run_explain
from appliance.cli.prompt_registry import (
    add_export,
    add_history,
    add_import,
    add_label,
    add_publish,
    run_export,
    run_history,
    run_import,
    run_label,
    run_publish,
)
from appliance.cli.prompt_template import (
    add_lint,
    add_render,
    add_tokens,
    run_lint,
    run_render,
    run_tokens,
)

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

COMMANDS: Mapping[str, tuple[Callable[[Subparsers], None], Callable[[argparse.Namespace], int]]] = {
    "lint": (add_lint, run_lint),
    "render": (add_render, run_render),
    "tokens": (add_tokens, run_tokens),
    "explain": (add_explain, run_explain),
    "publish": (add_publish, run_publish),
    "label": (add_label, run_label),
    "history": (add_history, run_history),
    "diff": (add_diff, run_diff),
    "replay": (add_replay, run_replay),
    "import": (add_import, run_import),
    "export": (add_export, run_export),
}
"""By name: what adds the subcommand with its options, and what runs it and gives the exit code."""


def add_prompt(commands: Subparsers) -> None:
    """The command and its subcommands, with `prompt_command` as the name that was chosen."""
    parser = commands.add_parser(
        "prompt", help="check, publish and compare what prompts are made of"
    )
    chosen = parser.add_subparsers(dest="prompt_command", required=True, metavar="COMMAND")
    for add, _ in COMMANDS.values():
        add(chosen)


def run_prompt(options: argparse.Namespace) -> int:
    """Run the chosen subcommand. Raises ApplianceError."""
    _, run = COMMANDS[options.prompt_command]
    return run(options)
