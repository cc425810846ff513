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
from appliance.counted import counted

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
    lines += _told(answer)
    lines.append(f"a prompt with short messages: {counted(before, 'token')}, then {after}")
    if answer["elsewhere"]:
        hold = "holds" if answer["elsewhere"] == 1 else "hold"
        lines.append(
            f"{_chats(answer['elsewhere'])} of this character {hold} another version than A"
        )
    return "\n".join(lines)


def _told(answer: Mapping[str, Any]) -> list[str]:
    changes, live = answer["changes"], answer["live"]
    cold = [change for change in changes if change["goes_cold"]]
    lines = [f"prefix changes at token {one['position']}, {_place(one)}" for one in cold]
    pays = live["cold"] or cold
    if pays and lines:
        lines[0] += f": {_price(live)}"
    elif pays:
        lines.append(f"{_price(live)}; no prompt that was made up changes so")
    for one in changes:
        if one["is_new"]:
            lines.append(f"prefix stays; a new message brings other text, {_place(one)}")
        elif not one["goes_cold"]:
            lines.append(f"prefix stays; what follows the newest message changes, {_place(one)}")
    if not pays and changes:
        stay = "stays" if live["chats"] == 1 else "stay"
        lines[-1] += f": {_chats(live['chats'])} {stay} warm"
    if not pays and not changes:
        lines.append(_same(answer))
    if live["refused"]:
        lines.append(f"in {_chats(live['refused'])} the newest message does not fit any more")
    if live["failed"]:
        lines.append(f"of {_chats(live['failed'])} no prompt can be made: {live['failure']}")
    if live["compared"] < live["chats"]:
        lines.append(f"of live chats the newest {live['compared']} were compared")
    if live["groups"]:
        has = "group has" if live["groups"] == 1 else "groups have"
        lines.append(f"{live['groups']} live {has} A among the members, and keep it")
    return lines + [f"not known: {said}" for said in answer["untold"]]


def _place(change: Mapping[str, Any]) -> str:
    where = f", {change['where']}" if change["where"] else ""
    return f"in `{change['part']}`{where}"


def _same(answer: Mapping[str, Any]) -> str:
    if answer["is_certain"]:
        return "prompts stay the same, token for token"
    return (
        f"none of {answer['tried']} prompts that were made up changes, nor those of "
        f"{_chats(answer['live']['compared'])}; a text that they do not hold may change others"
    )


def _price(live: Mapping[str, Any]) -> str:
    chats, cold = live["chats"], live["cold"]
    of = "" if cold == chats else f"{cold} of "
    goes = "goes" if cold == 1 else "go"
    return (
        f"{of}{_chats(chats)} {goes} cold when moved, about {_amount(live['tokens'])} to recompute"
    )


def _chats(count: int) -> str:
    return counted(count, "live chat")


def _amount(tokens: int) -> str:
    if tokens >= 1_000_000:
        return f"{tokens / 1_000_000:.1f} M tokens"
    return counted(tokens, "token")


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
        ("cannot be made", before["failed"], after["failed"]),
    ]
    head = f"{counted(len(answer['conversations']), 'conversation')} of {answer['name']}"
    lines = [f"{name:<16}{first!s:>14}{second!s:>14}" for name, first, second in rows]
    return "\n".join([head, *lines])


def _mean(tally: Mapping[str, int]) -> str:
    return f"{tally['tokens'] / tally['turns']:.0f}" if tally["turns"] else "none"


def _hits(tally: Mapping[str, int]) -> str:
    return percent(tally["hit_tokens"], tally["tokens"])
