"""`appliance experiment create | lint | start | status | pause | withdraw`: what needs no figures.

Asks a running appliance over its admin socket. Never: a database.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from appliance.cli.admin_client import ask
from appliance.cli.experiment_options import (
    add_arm,
    add_common,
    add_metrics,
    add_name,
    add_who_and_why,
    address,
    who_and_why,
)
from appliance.cli.plain_text import as_json, visible, when
from appliance.counted import counted
from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.experiment.definition import Definition

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

VERSION_CHARACTERS = 12


def add_create(kinds: Subparsers) -> None:
    """The options of `create`."""
    parser = kinds.add_parser("create", help="store an experiment as a draft; no chat changes")
    parser.add_argument("file", type=Path, metavar="FILE", help="the experiment, as YAML")
    add_who_and_why(parser)
    add_metrics(parser)
    add_common(parser)


def add_lint(kinds: Subparsers) -> None:
    """The options of `lint`."""
    parser = kinds.add_parser("lint", help="say what is wrong with an experiment's file")
    parser.add_argument("file", type=Path, metavar="FILE", help="the experiment, as YAML")
    add_metrics(parser)
    add_common(parser)


def add_start(kinds: Subparsers) -> None:
    """The options of `start`."""
    parser = kinds.add_parser("start", help="let users in, or more of them")
    add_name(parser)
    parser.add_argument(
        "--coverage",
        type=float,
        default=None,
        metavar="SHARE",
        help="the share of its users to let in (0.1: a tenth); never less than before",
    )
    add_who_and_why(parser)
    add_common(parser)


def add_status(kinds: Subparsers) -> None:
    """The options of `status`."""
    parser = kinds.add_parser("status", help="which experiments there are, and who is in one")
    parser.add_argument(
        "name", nargs="?", default=None, metavar="NAME", help="one of them (default: all)"
    )
    add_common(parser)


def add_pause(kinds: Subparsers) -> None:
    """The options of `pause`."""
    parser = kinds.add_parser("pause", help="open no more chats in one arm")
    add_name(parser)
    add_arm(parser)
    add_who_and_why(parser)
    add_common(parser)


def add_withdraw(kinds: Subparsers) -> None:
    """The options of `withdraw`."""
    parser = kinds.add_parser("withdraw", help="give a draft up, which nobody was ever in")
    add_name(parser)
    add_who_and_why(parser)
    add_common(parser)


def run_lint(options: argparse.Namespace) -> int:
    """Print what is wrong; returns 2 where something is."""
    answer = _linted(options, _read(options))
    if options.json:
        print(as_json(answer))
    else:
        lines = [f"error: {fault}" for fault in answer["faults"]]
        lines += [f"note: {note}" for note in answer["notes"]]
        print(visible("\n".join(lines or [f"{options.file}: nothing is wrong"])))
    return 2 if answer["faults"] else 0


def run_create(options: argparse.Namespace) -> int:
    """Store a draft; returns the exit code."""
    definition = _read(options)
    linted = _linted(options, definition)
    if linted["faults"]:
        raise InvalidRequest(f"{options.file}: " + "; ".join(linted["faults"]))
    body = {"definition": _sent(definition), **who_and_why(options)}
    answer = ask(options, "POST", "/experiments", body)
    if options.json:
        print(as_json(answer))
        return 0
    name = answer["experiment"]["name"]
    notes = [f"note: {note}" for note in answer["notes"]]
    print(
        visible(
            "\n".join(
                [
                    *notes,
                    f"{name}: created; nobody is in it before it starts: "
                    f"appliance experiment start {name} -m WHY",
                ]
            )
        )
    )
    return 0


def run_start(options: argparse.Namespace) -> int:
    """Start it, or let more users in; returns the exit code."""
    if options.coverage is not None and not 0 < options.coverage <= 1:
        raise InvalidRequest(
            f"--coverage: {options.coverage:g} is no share: above 0 and at most 1 (0.1 lets in a tenth)"
        )
    body = {"coverage": options.coverage, **who_and_why(options)}
    answer = ask(options, "POST", address(options, "/start"), body)
    found = answer["experiment"]
    print(
        as_json(answer)
        if options.json
        else f"{found['name']}: runs, with {100 * found['coverage']:g}% of the users in its range"
    )
    return 0


def run_pause(options: argparse.Namespace) -> int:
    """Pause an arm; returns the exit code."""
    body = {"arm": options.arm, **who_and_why(options)}
    answer = ask(options, "POST", address(options, "/pause"), body)
    state = "no more chats are opened in it" if answer["paused"] else "was paused before"
    print(as_json(answer) if options.json else f"{options.name}, arm {options.arm}: {state}")
    return 0


def run_withdraw(options: argparse.Namespace) -> int:
    """Give a draft up; returns the exit code."""
    answer = ask(options, "POST", address(options, "/withdraw"), who_and_why(options))
    print(as_json(answer) if options.json else f"{options.name}: withdrawn; it is never started")
    return 0


def run_status(options: argparse.Namespace) -> int:
    """Print all experiments, or one; returns the exit code."""
    if options.name is None:
        answer = ask(options, "GET", "/experiments")
        text = "\n".join(map(_line, answer["experiments"])) or "there are no experiments"
    else:
        answer = ask(options, "GET", address(options))
        text = _status(answer)
    print(as_json(answer) if options.json else visible(text))
    return 0


def _read(options: argparse.Namespace) -> Definition:
    from appliance.experiment.definition import read_definition

    return read_definition(options.file.read_bytes(), str(options.file))


def _sent(definition: Definition) -> Any:
    import msgspec

    return msgspec.to_builtins(definition)


def _linted(options: argparse.Namespace, definition: Definition) -> dict[str, Any]:
    """What the appliance says, and what of it only this side knows: the names of metrics."""
    from appliance.experiment.definition import faults
    from appliance.experiment.metric_files import load_metrics

    own = faults(definition, load_metrics(options.metrics).by_name)
    answer: dict[str, Any] = ask(
        options, "POST", "/experiments/lint", {"definition": _sent(definition)}
    )
    answer["faults"] = list(dict.fromkeys([*own, *answer["faults"]]))
    return answer


def _line(experiment: Mapping[str, Any]) -> str:
    arms = ", ".join(
        arm["name"] + (" (paused)" if arm["paused_at"] else "") for arm in experiment["arms"]
    )
    since = experiment["started_at"]
    began = f"since {when(since)}" if since else "not started"
    return (
        f"{experiment['name']}  {experiment['state']}  {began}  {experiment['character']}: {arms}  "
        f"{100 * experiment['coverage']:g}% of layer {experiment['layer']} "
        f"[{experiment['range_start']:g}, {experiment['range_end']:g})"
    )


def _status(answer: Mapping[str, Any]) -> str:
    experiment = answer["experiment"]
    counts = {count["arm"]: count for count in answer["counts"]}
    lines = [_line(experiment), experiment["hypothesis"], "arms"]
    for arm in experiment["arms"]:
        count = counts.get(arm["name"], defaultdict(int))
        paused = f", paused {when(arm['paused_at'])}" if arm["paused_at"] else ""
        lines.append(
            f"  {arm['name']}  {arm['version'][:VERSION_CHARACTERS]}  {arm['share']:.1%}{paused}: "
            f"{counted(count['users'], 'user')}, {counted(count['conversations'], 'conversation')}, "
            f"seen in {count['exposed']:,} of them"
            + (f", {count['deleted']:,} deleted" if count["deleted"] else "")
        )
    for which, field in (("in two arms", "crossed"), ("testers", "testers")):
        if answer[field]:
            lines.append(f"  {which}: {counted(answer[field], 'user')}, whom no report counts")
    lines.append("what happened")
    for event in answer["events"]:
        arm = f" {event['arm']}" if event["arm"] else ""
        lines.append(
            f"  {when(event['at'])}  {event['kind']}{arm}  {event['author']}: "
            f"{' '.join(event['message'].split())}"
        )
    return "\n".join(lines)
