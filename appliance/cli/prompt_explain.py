"""`appliance prompt explain`: what a reply's prompt was made of, and what broke its prefix."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from appliance.cli.admin_client import add_place, ask
from appliance.cli.conversation_options import add_conversation
from appliance.cli.plain_text import as_json, percent

MESSAGES_SHOWN = 3
"""Messages of the history shown at each end; those between are summed up."""


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
    print(as_json(answer) if options.json else _text(answer))
    return 0


def _text(answer: Mapping[str, Any]) -> str:
    room = answer["limit"] - answer["reserve"]
    lines = [f"{'tokens':>8} {'cached':>8}  part"]
    lines += _rows(answer["parts"])
    lines.append(f"{answer['tokens']:>8} {_number(answer['cached_tokens']):>8}  in all")
    lines.append(
        f"window   {answer['window_tokens']} of {room} tokens counted (context {answer['limit']}, "
        f"{answer['reserve']} kept for the reply, cut by {answer['step']})"
    )
    if answer["messages_dropped"] or answer["parts_dropped"]:
        names = "".join(f", {name}" for name in answer["parts_dropped"])
        lines.append(f"cut      {answer['messages_dropped']} messages at the front{names}")
    if not answer["is_as_sent"]:
        lines.append(
            f"note     the turn counted {answer['prompt_tokens']} tokens: this is not what was sent"
        )
    if answer["before_id"] is not None:
        shared = answer["shared_tokens"]
        lines.append(
            f"prefix   {shared} tokens as the turn before left them, "
            f"{percent(shared, answer['tokens'])}"
        )
    detail = f" ({answer['detail']})" if answer["detail"] else ""
    lines.append(f"cause    {answer['cause']}{detail}")
    difference = answer["first_difference"]
    if difference is not None:
        lines.append(f"         token {difference['position']}, in {difference['part']}")
        lines += [f"  {name:<8} {difference[name]!r}" for name in ("before", "asked")]
    return "\n".join(lines)


def _rows(parts: list[Mapping[str, Any]]) -> list[str]:
    spoken = [part for part in parts if part["zone"] == "history"]
    hidden = spoken[MESSAGES_SHOWN : len(spoken) - MESSAGES_SHOWN]
    rows = []
    for part in parts:
        if part not in hidden:
            about = f"{part['name']} ({part['role']}, {part['zone']})"
            rows.append(f"{part['tokens']:>8} {_number(part['cached']):>8}  {about}")
        elif part is hidden[0]:
            tokens = sum(part["tokens"] for part in hidden)
            cached = None
            if all(part["cached"] is not None for part in hidden):
                cached = sum(part["cached"] for part in hidden)
            rows.append(f"{tokens:>8} {_number(cached):>8}  {len(hidden)} messages between")
    return rows


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
