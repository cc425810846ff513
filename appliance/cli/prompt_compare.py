"""`appliance prompt diff | replay`: two versions of a character side by side, before any chat pays.

Asks a running appliance over its admin socket. Never: computes what it prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, TypeAlias

from appliance.cli.admin_client import add_place, ask
from appliance.cli.plain_text import as_json, percent, visible
from appliance.cli.prompt_references import REFERENCE_HELP, sent_reference

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DAYS = 7.0
CONVERSATIONS = 20
TIMEOUT_S = 600.0


def add_diff(kinds: Subparsers) -> None:
    """The options of `diff`."""
    parser = kinds.add_parser("diff", help="what differs, and what it costs chats that go on")
    _add_both(parser)
    parser.add_argument(
        "--days",
        type=float,
        default=DAYS,
        help=f"live chats are those with activity in the last so many days (default: {DAYS:g})",
    )


def add_replay(kinds: Subparsers) -> None:
    """The options of `replay`."""
    parser = kinds.add_parser("replay", help="run recorded conversations through two versions")
    _add_both(parser)
    parser.add_argument(
        "--conversations",
        type=int,
        default=CONVERSATIONS,
        metavar="N",
        help=f"how many, those changed last (default: {CONVERSATIONS})",
    )


def run_diff(options: argparse.Namespace) -> int:
    """Compare and print; returns the exit code."""
    answer = ask(options, "POST", "/prompts/diff", {**_both(options), "days": options.days})
    print(as_json(answer) if options.json else visible(_diff_text(answer)))
    return 0


def run_replay(options: argparse.Namespace) -> int:
    """Replay and print; returns the exit code."""
    asked = {**_both(options), "conversations": options.conversations}
    answer = ask(options, "POST", "/prompts/replay", asked, timeout_s=TIMEOUT_S)
    print(as_json(answer) if options.json else _replay_text(answer))
    return 0


def _add_both(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help=REFERENCE_HELP)
    parser.add_argument("after", metavar="B", help="what it would become")
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _both(options: argparse.Namespace) -> dict[str, Any]:
    return {"before": sent_reference(options.before), "after": sent_reference(options.after)}


def _diff_text(answer: Mapping[str, Any]) -> str:
    before, after = answer["tokens_before"], answer["tokens_after"]
    lines = [answer["text"]] if answer["text"] else []
    lines += [_price(answer), f"a prompt with one short message: {before} tokens, then {after}"]
    if answer["elsewhere"]:
        hold = "holds" if answer["elsewhere"] == 1 else "hold"
        lines.append(
            f"{_chats(answer['elsewhere'])} of this character {hold} another version than A"
        )
    return "\n".join(lines)


def _price(answer: Mapping[str, Any]) -> str:
    change = answer["change"]
    if change is None:
        return "prompts stay the same, token for token"
    live = _chats(answer["live"])
    if change["zone"] == "volatile":
        return (
            f"prefix stays; what follows the newest message changes, in `{change['part']}`: "
            f"{live} stay warm"
        )
    goes = "goes" if answer["live"] == 1 else "go"
    return (
        f"prefix changes at token {change['position']}, in `{change['part']}`: {live} {goes} cold when "
        f"moved, about {_amount(answer['tokens_to_recompute'])} tokens to recompute"
    )


def _chats(count: int) -> str:
    return f"{count} live chat{'' if count == 1 else 's'}"


def _amount(tokens: int) -> str:
    if tokens >= 1_000_000:
        return f"{tokens / 1_000_000:.1f} M"
    return f"{tokens:,}"


def _replay_text(answer: Mapping[str, Any]) -> str:
    before, after = answer["before"], answer["after"]
    columns = [version[:12] for version in answer["versions"]]
    rows = [
        ("", *columns),
        ("turns", before["turns"], after["turns"]),
        ("prompt tokens", before["tokens"], after["tokens"]),
        ("tokens a turn", _mean(before), _mean(after)),
        ("cuts", before["cuts"], after["cuts"]),
        ("predicted hits", _hits(before), _hits(after)),
        ("does not fit", before["refused"], after["refused"]),
    ]
    count = len(answer["conversations"])
    head = f"{count} conversation{'' if count == 1 else 's'} of {answer['name']}"
    lines = [f"{name:<16}{first!s:>14}{second!s:>14}" for name, first, second in rows]
    return "\n".join([head, *lines])


def _mean(tally: Mapping[str, int]) -> str:
    return f"{tally['tokens'] / tally['turns']:.0f}" if tally["turns"] else "none"


def _hits(tally: Mapping[str, int]) -> str:
    return percent(tally["hit_tokens"], tally["tokens"])
