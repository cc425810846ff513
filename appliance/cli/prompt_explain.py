"""`appliance prompt explain`: what a reply's prompt was made of, and what broke its prefix."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from appliance.cli.admin_client import add_place, ask
from appliance.cli.conversation_options import add_conversation
from appliance.cli.explained_text import cause_lines, part_rows, row
from appliance.cli.plain_text import as_json, percent, visible
from appliance.counted import counted


def add_explain(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = subparsers.add_parser(
        "explain", help="what a reply's prompt was made of, what was cut, what broke its prefix"
    )
    add_conversation(parser)
    parser.add_argument(
        "message",
        type=UUID,
        metavar="MESSAGE",
        nargs="?",
        default=None,
        help="a reply's id; without one, the reply that is shown",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_explain(options: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    given = {"message": options.message, "tenant": options.tenant}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    answer = ask(options, "GET", f"/prompt/conversations/{options.conversation}?{query}")
    print(as_json(answer) if options.json else visible(_text(answer)))
    return 0


def _text(answer: Mapping[str, Any]) -> str:
    room = answer["limit"] - answer["reserve"]
    lines = part_rows(answer["parts"])
    lines.append(row(answer["tokens"], answer["cached_tokens"], "in all"))
    lines.append(
        f"window   {answer['window_tokens']} of {room} tokens counted (context {answer['limit']}, "
        f"{answer['reserve']} kept for the reply, cut by {answer['step']})"
    )
    lines += _cut(answer)
    if not answer["is_as_sent"]:
        prompt = counted(answer["prompt_tokens"], "token")
        lines.append(
            f"note     the turn counted {prompt}; what it was made with is not known any more: "
            "this is how it would be made now"
        )
    if answer["before_id"] is not None:
        shared = answer["shared_tokens"]
        lines.append(
            f"prefix   {counted(shared, 'token')} as the turn before left them, "
            f"{percent(shared, answer['tokens'])}"
        )
    return "\n".join([*lines, *cause_lines(answer)])


def _cut(answer: Mapping[str, Any]) -> list[str]:
    """What is not in the prompt, in the order in which it goes."""
    dropped, priority = answer["messages_dropped"], answer["history_priority"]
    lines = []
    for part in answer["parts_dropped"]:
        block = "" if part["block"] is None else f", of block {part['block']}"
        goes = "before" if part["goes_before_history"] else "after"
        lines.append(
            f"cut      {part['name']}, {counted(part['tokens'], 'token')}{block}: truncation priority "
            f"{part['truncation_priority']}, goes {goes} old messages"
        )
    if dropped:
        noun = "message" if dropped == 1 else "messages"
        lines.append(
            f"cut      the {dropped} oldest {noun} (truncation priority {priority}); it begins with "
            f"{answer['context_begins_at']}"
        )
    return lines
