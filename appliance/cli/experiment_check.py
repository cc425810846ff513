"""`appliance experiment check`: looks at every experiment, pauses arms that breach a guardrail, and
renews the operator's pages. Never: starts, stops or ships one."""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from appliance.cli.admin_client import Answered, ask
from appliance.cli.experiment_look import Look, look_at_all
from appliance.cli.experiment_options import add_common, add_metrics
from appliance.cli.experiment_pages import LIST_FILE, draw, publish, write
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import ApplianceError, Conflict, InvalidRequest
from appliance.log import complain, tell

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

AUTHOR = "guardrail"
MESSAGE_CHARACTERS = 2_000
EVERY_MINUTES_MIN = 1.0
EVERY_MINUTES_MAX = 7 * 24 * 60.0


def add_check(kinds: Subparsers) -> None:
    """The options of `check`."""
    parser = kinds.add_parser("check", help="pause arms that breach a guardrail; renew the pages")
    parser.add_argument(
        "--pages",
        type=Path,
        default=None,
        metavar="FOLDER",
        help=f"write what the server shows at /experiments there, too ({LIST_FILE} and a report each)",
    )
    parser.add_argument(
        "--every", type=float, default=None, metavar="MINUTES", help="go on doing it, so often"
    )
    add_metrics(parser)
    add_common(parser)


def run_check(options: argparse.Namespace) -> int:
    """Check once, or until it is interrupted; returns the exit code."""
    if options.every is None:
        _check(options)
        return 0
    if not EVERY_MINUTES_MIN <= options.every <= EVERY_MINUTES_MAX:
        raise InvalidRequest(
            f"--every: {options.every:g} is not {EVERY_MINUTES_MIN:g} to {EVERY_MINUTES_MAX:g} minutes"
        )
    while True:
        check_again(options)
        time.sleep(options.every * 60)


def check_again(options: argparse.Namespace) -> None:
    """Check; what is away now is said, and is no reason not to check again later."""
    try:
        _check(options)
    except (ApplianceError, OSError) as error:
        told = error.message if isinstance(error, ApplianceError) else str(error)
        complain(f"appliance: {visible(told)}")


def _check(options: argparse.Namespace) -> None:
    looks = look_at_all(options)
    paused = [
        {"experiment": found.experiment.name, "arm": arm, "why": why}
        for found in looks
        for arm, why in found.to_pause
        if _pause(options, found.experiment.name, arm, why)
    ]
    if paused:
        # The pages tell of the pauses.
        looks = look_at_all(options)
    looks = tuple(found.shown for found in looks)
    pages = draw(looks)
    publish(options, pages)
    if options.pages is not None:
        write(options.pages, pages)
    if options.json:
        print(as_json({"paused": paused, "experiments": [_fields(found) for found in looks]}))
        return
    lines = [f"{found.experiment.name}: {_line(found)}" for found in looks]
    print(visible("\n".join(lines or ["no experiment runs"])), flush=True)
    for one in paused:
        told = visible(f"paused {one['experiment']}, arm {one['arm']}: {one['why']}")
        tell(told, logging.WARNING)


def _pause(options: argparse.Namespace, name: str, arm: str, why: str) -> bool:
    body = {"arm": arm, "author": AUTHOR, "message": why[:MESSAGE_CHARACTERS]}
    try:
        answer = ask(options, "POST", f"/experiments/{quote(name, safe='')}/pause", body)
    except Answered as error:
        # Somebody ended it meanwhile: no reason to leave the arms of others open.
        if error.code != Conflict.code:
            raise
        return False
    return bool(answer["paused"])


def _fields(found: Look) -> dict[str, Any]:
    verdicts = {} if found.analysis is None else _verdicts(found)
    return {"experiment": found.experiment.name, "verdicts": verdicts, "lacks": found.lacks}


def _line(found: Look) -> str:
    from appliance.experiment.report.words import did_it_help

    if found.analysis is None:
        return (found.lacks or "").removeprefix(found.experiment.name).lstrip(": ")
    told = [
        f"did {result.arm} help? {did_it_help(result, found.analysis, found.subject).short}"
        for result in found.analysis.results
    ]
    return "; ".join([counted(found.analysis.users, "user"), *told])


def _verdicts(found: Look) -> dict[str, str]:
    assert found.analysis is not None
    return {result.arm: result.verdict.value.replace("_", " ") for result in found.analysis.results}
