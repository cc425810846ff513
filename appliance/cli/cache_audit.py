"""`appliance cache audit`: recompute what is cached, and say whether it is right."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from appliance.cli.admin_client import add_place, ask
from appliance.cli.cache_stats import coverage_line
from appliance.cli.conversation_options import add_conversation
from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.plain_text import as_json
from appliance.log import tell

GRACE_S = 5.0
"""The appliance says itself when the time is over; the command waits a little longer than that."""


def add_audit(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = subparsers.add_parser(
        "audit", help="recompute what is cached, in idle time, and compare"
    )
    add_conversation(parser, is_optional=True)
    parser.add_argument(
        "--tokens",
        type=_number(1, 1_000_000),
        default=4096,
        help="without a conversation: how many tokens of turns that ended lately (default: 4096)",
    )
    parser.add_argument(
        "--timeout",
        type=_number(1, 3600),
        default=120,
        metavar="SECONDS",
        help="how long to wait for idle time (default: 120)",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_audit(options: argparse.Namespace) -> int:
    """Ask and print; returns the exit code, 1 when something was wrong."""
    asked: dict[str, object] = {"timeout_s": options.timeout}
    if options.conversation is None:
        asked["tokens"] = options.tokens
    else:
        asked["conversation"] = str(options.conversation)
    if options.tenant is not None:
        asked["tenant"] = options.tenant
    answer = ask(options, "POST", "/cache/audit", asked, timeout_s=options.timeout + GRACE_S)
    is_wrong = any(path["cause"] for path in answer["paths"])
    text = as_json(answer) if options.json else _text(answer)
    tell(text, logging.ERROR if is_wrong else logging.INFO)
    return EXIT_FOUND_WRONG if is_wrong else 0


def _text(answer: Mapping[str, Any]) -> str:
    lines = [_line(path) for path in answer["paths"]]
    if not lines:
        lines = ["nothing to compare: none of it is cached, or no page was free"]
    lines.append(coverage_line(answer["index_coverage"]))
    if answer["alarm"]:
        lines.append(
            "ALARM: an audit has failed since the engine started; see audit_failed in its log"
        )
    return "\n".join(lines)


def _line(path: Mapping[str, Any]) -> str:
    agreement = "agrees" if path["top1_agrees"] else "DIFFERS"
    if path["cause"] is None:
        return (
            f"right         {path['tokens']} tokens, logits within {path['logit_difference']:.2g}, "
            f"top token {agreement}"
        )
    place = "" if path["position"] is None else f" from token {path['position']} on"
    return (
        f"WRONG         {path['cause']}{place}: logits differ by {path['logit_difference']:.2g}, "
        f"top token {agreement}; {path['pages_dropped']} pages dropped"
    )


DIGITS_MAX = 9


def _number(least: int, most: int) -> Any:
    def parsed(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
        if not is_number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least} to {most}")
        return int(text)

    return parsed
