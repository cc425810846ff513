"""`appliance experiment switchback`: latency of two versions by turns. Never: moves a label."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from appliance.cli.experiment_database import read
from appliance.cli.experiment_options import add_common
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.experiment.switching import Switching
    from appliance.store.pool import Pool

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_switchback(kinds: Subparsers) -> None:
    """The options of `switchback`."""
    parser = kinds.add_parser(
        "switchback", help="latency while `production` stood at one version, and at another"
    )
    parser.add_argument("character", metavar="CHARACTER", help="whose label it is")
    parser.add_argument("before", metavar="VERSION", help="the one; its beginning is enough")
    parser.add_argument("after", metavar="OTHER", help="the other, which is compared with it")
    parser.add_argument(
        "--since", default=None, metavar="TIME", help="in ISO 8601; UTC without a zone"
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="left out of each period: the cache has nothing of what is new (default: 10)",
    )
    add_common(parser)


def run_switchback(options: argparse.Namespace) -> int:
    """Print the comparison; returns the exit code."""
    import msgspec

    found = _compared(options)
    print(as_json(msgspec.to_builtins(found)) if options.json else visible(_text(found)))
    return 0


def _compared(options: argparse.Namespace) -> Switching:
    from appliance.experiment.switching import compare_by_turns

    since = _time(options.since)
    if not 0 <= options.warm_up <= 24 * 60:
        raise InvalidRequest(f"--warm-up: {options.warm_up:g} is not 0 to 1440 minutes")

    async def compared(pool: Pool) -> Switching:
        return await compare_by_turns(
            pool,
            options.character,
            (options.before, options.after),
            since=since,
            warm_up=timedelta(minutes=options.warm_up),
        )

    return read(options, compared)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"--since: {text!r} is no time in ISO 8601") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _text(found: Switching) -> str:
    from appliance.experiment.report.numbers import change, span

    lines = [
        f"{found.character}: {found.after[:12]} beside {found.before[:12]}, by turns, in "
        f"{found.paired:,} of {counted(found.periods, 'period')}"
    ]
    for turns in found.turns:
        blocks = counted(turns.blocks, "pair") + " of neighbouring periods"
        if turns.effect is None:
            lines.append(f"  {turns.title}: {blocks}: two at least are needed")
            continue
        effect = turns.effect
        lines.append(
            f"  {turns.title}: {change(effect.change)} ({span(effect.low, effect.high)}), {blocks}"
        )
    lines.append(
        "95 % intervals for one look; the unit is a pair: periods that follow each other at once, cut to "
        "equal lengths. Move the label to and fro at drawn times."
    )
    return "\n".join(lines)
