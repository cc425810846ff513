"""`appliance prompt lint | render | tokens`: a template or character, before any chat uses it.

Imports what it needs when it runs. Never: asks an appliance.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_lint(kinds: Subparsers) -> None:
    """The options of `lint`."""
    _add(
        kinds,
        "lint",
        "say what is wrong or costly in a template or a character",
        more=", or a folder of them",
    )


def add_render(kinds: Subparsers) -> None:
    """The options of `render`."""
    _add(kinds, "render", "print the parts, with sample data or your own")


def add_tokens(kinds: Subparsers) -> None:
    """The options of `tokens`."""
    tokens = _add(kinds, "tokens", "count the tokens of each part")
    tokens.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="whose tokenizer and chat format (default: the demo's model)",
    )
    tokens.add_argument(
        "--limit", type=int, metavar="N", help="exit with 2 when the parts alone are more tokens"
    )


def run_lint(options: argparse.Namespace) -> int:
    """Print the findings; returns the exit code. Raises TemplateError or ConfigError."""
    from appliance.cli import template_commands

    return template_commands.lint(options.file, _data(options))


def run_render(options: argparse.Namespace) -> int:
    """Print the parts; returns the exit code. Raises as `run_lint`."""
    from appliance.cli import template_commands

    template_commands.print_parts(options.file, _data(options))
    return 0


def run_tokens(options: argparse.Namespace) -> int:
    """Print the counts; returns the exit code. Raises as `run_lint`."""
    from appliance.cli import template_commands

    return template_commands.print_tokens(
        options.file, _data(options), options.model, options.limit
    )


def _add(kinds: Subparsers, name: str, words: str, *, more: str = "") -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=words)
    parser.add_argument(
        "file",
        type=Path,
        metavar="PATH",
        help=f"a template, or the file or folder of a character{more}",
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE.json", help="variables, in place of the sample data"
    )
    return parser


def _data(options: argparse.Namespace) -> dict[str, Any]:
    from appliance.cli import template_commands

    return {} if options.data is None else template_commands.read_data(options.data)
