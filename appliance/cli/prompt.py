"""`appliance prompt lint | render | tokens | explain`: the command line. Imports what it needs when it
runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_prompt(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prompt` and its commands to the command line."""
    from appliance.cli.prompt_explain import add_explain

    prompt = commands.add_parser("prompt", help="check a prompt template, and see what it makes")
    kinds = prompt.add_subparsers(dest="prompt_command", required=True, metavar="COMMAND")
    lint = kinds.add_parser("lint", help="say what is wrong or costly in a template")
    render = kinds.add_parser("render", help="print the parts, with sample data or your own")
    tokens = kinds.add_parser("tokens", help="count the tokens of each part")
    for command in (lint, render, tokens):
        command.add_argument("file", type=Path, metavar="FILE", help="a template")
        command.add_argument(
            "--data", type=Path, metavar="FILE.json", help="variables, in place of the sample data"
        )
    tokens.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="whose tokenizer and chat format (default: the demo's model)",
    )
    add_explain(kinds)
    tokens.add_argument(
        "--limit", type=int, metavar="N", help="exit with 2 when the parts alone are more tokens"
    )


def run_prompt(options: argparse.Namespace) -> int:
    """Run one of the commands; returns the exit code. Raises TemplateError or ConfigError."""
    from appliance.cli import prompt_explain, prompt_output

    if options.prompt_command == "explain":
        return prompt_explain.run_explain(options)
    data = {} if options.data is None else prompt_output.read_data(options.data)
    if options.prompt_command == "lint":
        return prompt_output.lint(options.file, data)
    if options.prompt_command == "render":
        prompt_output.print_parts(options.file, data)
        return 0
    return prompt_output.print_tokens(options.file, data, options.model, options.limit)
