"""`appliance cache purge`: drop what is cached. Never: touches what is stored."""

from __future__ import annotations

import argparse

from appliance.cli.admin_client import add_place, ask
from appliance.cli.conversation_options import add_conversation
from appliance.cli.exit_codes import EXIT_BAD_INPUT
from appliance.cli.plain_text import as_json
from appliance.log import complain


def add_purge(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = subparsers.add_parser(
        "purge", help="drop what is cached of a conversation, of a tenant or of all"
    )
    add_conversation(parser, is_optional=True)
    parser.add_argument("--all", action="store_true", help="everything that nothing holds")
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_purge(options: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    is_whose = options.conversation is not None or options.tenant is not None
    if options.all == is_whose:
        complain("appliance: say what to purge: a CONVERSATION, --tenant NAME, or --all")
        return EXIT_BAD_INPUT
    asked: dict[str, object] = {"everything": True}
    if is_whose:
        asked = {} if options.tenant is None else {"tenant": options.tenant}
        if options.conversation is not None:
            asked["conversation"] = str(options.conversation)
    answer = ask(options, "POST", "/cache/purge", asked)
    print(as_json(answer) if options.json else f"dropped {answer['pages']} pages")
    return 0
