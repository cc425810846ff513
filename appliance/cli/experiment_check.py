"""`appliance experiment check`: looks at every experiment, pauses arms that breach a guardrail, and
writes the operator's pages. Never: starts, stops or ships one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from appliance.cli.admin_client import ask
from appliance.cli.experiment_look import Look, look_at_all
from appliance.cli.experiment_options import add_common, add_metrics
from appliance.cli.plain_text import as_json, visible
from appliance.errors import ApplianceError, InvalidRequest

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

AUTHOR = "guardrail"
MESSAGE_CHARACTERS = 2_000
LIST_FILE = "index.html"
EVERY_MINUTES_MIN = 1.0
EVERY_MINUTES_MAX = 7 * 24 * 60.0


def add_check(kinds: Subparsers) -> None:
    """The options of `check`."""
    parser = kinds.add_parser("check", help="pause arms that breach a guardrail; write the pages")
    parser.add_argument(
        "--pages",
        type=Path,
        default=None,
        metavar="FOLDER",
        help=f"write {LIST_FILE} with what runs, and a report for each",
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
    except ApplianceError as error:
        print(f"appliance: {visible(error.message)}", file=sys.stderr, flush=True)


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
    if options.pages is not None:
        _write_pages(options.pages, looks)
    if options.json:
        print(as_json({"paused": paused, "experiments": [_fields(found) for found in looks]}))
        return
    lines = [f"{found.experiment.name}: {_line(found)}" for found in looks]
    lines += [f"paused {one['experiment']}, arm {one['arm']}: {one['why']}" for one in paused]
    print(visible("\n".join(lines or ["no experiment runs"])), flush=True)


def _pause(options: argparse.Namespace, name: str, arm: str, why: str) -> bool:
    body = {"arm": arm, "author": AUTHOR, "message": why[:MESSAGE_CHARACTERS]}
    answer = ask(options, "POST", f"/experiments/{quote(name, safe='')}/pause", body)
    return bool(answer["paused"])


def _fields(found: Look) -> dict[str, Any]:
    verdicts = {} if found.analysis is None else _verdicts(found)
    return {"experiment": found.experiment.name, "verdicts": verdicts, "lacks": found.lacks}


def _line(found: Look) -> str:
    if found.analysis is None:
        return found.lacks or "nothing was measured"
    told = ", ".join(f"{arm} {verdict}" for arm, verdict in _verdicts(found).items())
    return f"{found.analysis.users:,} users; {told}"


def _verdicts(found: Look) -> dict[str, str]:
    assert found.analysis is not None
    return {result.arm: result.verdict.value.replace("_", " ") for result in found.analysis.results}


def _write_pages(folder: Path, looks: tuple[Look, ...]) -> None:
    from appliance.experiment.report.list_page import Listed, list_page
    from appliance.experiment.report.page import report_page

    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for found in looks:
        file = None
        if found.analysis is not None:
            file = f"{found.experiment.name}.html"
            _replace(folder / file, report_page(found.subject, found.analysis))
        listed.append(
            Listed(subject=found.subject, analysis=found.analysis, lacks=found.lacks, address=file)
        )
    _replace(folder / LIST_FILE, list_page(tuple(listed)))


def _replace(path: Path, text: str) -> None:
    """In one step: whoever reads it meanwhile has the old page or the new one."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
