"""`appliance cache explain`: how much of a conversation is cached where, and why not more."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from appliance.cli.admin_client import add_place, ask
from appliance.cli.conversation_options import add_conversation, address_of
from appliance.cli.explained_text import cause_lines
from appliance.cli.plain_text import as_json, percent, visible


def add_explain(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = subparsers.add_parser(
        "explain", help="what is cached of a conversation, and why not more"
    )
    add_conversation(parser)
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_explain(options: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    answer = ask(options, "GET", address_of(options))
    print(as_json(answer) if options.json else visible(_text(answer)))
    return 0


def _text(answer: Mapping[str, Any]) -> str:
    cached, total = answer["cached_tokens"], answer["tokens"]
    lines = [
        f"tokens     {cached} of {total} are cached, {percent(cached, total)}",
        f"pages      {answer['device_pages']} device, {answer['host_pages']} host, "
        f"{answer['disk_pages']} disk, {answer['missing_pages']} missing "
        f"(of {answer['page_size']} tokens)",
    ]
    for role, found in answer["by_role"].items():
        lines.append(f"{role:<10} {found['cached']} of {found['tokens']} tokens")
    if answer["last_prompt_tokens"] is not None:
        lines.append(
            f"last turn  found {answer['last_hit_tokens']} of {answer['last_prompt_tokens']} "
            "prompt tokens"
        )
    if answer["first_difference"] is None:
        return "\n".join([*lines, "all of it is cached"])
    return "\n".join([*lines, *cause_lines(answer)])
