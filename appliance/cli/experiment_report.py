"""`appliance experiment report | stop | ship`: what an experiment has shown, and what is done of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from appliance.cli.admin_client import ask
from appliance.cli.experiment_look import Look, look
from appliance.cli.experiment_options import (
    add_arm,
    add_common,
    add_metrics,
    add_name,
    add_who_and_why,
    address,
    who_and_why,
)
from appliance.cli.plain_text import as_json, visible
from appliance.counted import counted
from appliance.errors import ApplianceError, InvalidRequest

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SHIP_TIMEOUT_S = 300.0


def add_report(kinds: Subparsers) -> None:
    """The options of `report`."""
    parser = kinds.add_parser(
        "report",
        help="did it help, how sure is that, what does it cost; also of one that has ended",
    )
    add_name(parser)
    parser.add_argument(
        "--page", type=Path, default=None, metavar="FILE", help="write it as one HTML page"
    )
    add_metrics(parser)
    add_common(parser)


def add_stop(kinds: Subparsers) -> None:
    """The options of `stop`."""
    parser = kinds.add_parser("stop", help="let nobody in any more; open chats keep their version")
    add_name(parser)
    add_who_and_why(parser)
    add_metrics(parser)
    add_common(parser)


def add_ship(kinds: Subparsers) -> None:
    """The options of `ship`."""
    parser = kinds.add_parser(
        "ship", help="move label production to an arm's version, and end the experiment"
    )
    add_name(parser)
    add_arm(parser)
    parser.add_argument(
        "--confirm", metavar="LABEL", help="`production` again, where the label is protected"
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also one that is paused or harms, is in doubt, or takes a later version back",
    )
    add_who_and_why(parser)
    add_metrics(parser)
    add_common(parser)


def run_report(options: argparse.Namespace) -> int:
    """Print the report, or write it; returns the exit code."""
    import msgspec

    from appliance.experiment.report.document import report_text
    from appliance.experiment.report.page import report_page

    found = look(options)
    analysis = found.analysis
    if analysis is None:
        raise InvalidRequest(found.lacks or "")
    if found.shipped is None:
        found = _priced(options, found)
    if options.page is not None:
        options.page.write_text(report_page(found.subject, analysis), encoding="utf-8")
    if options.json:
        print(as_json({**_document(found), "shipped": msgspec.to_builtins(found.shipped)}))
    else:
        print(visible(report_text(found.subject, analysis)), end="")
    return 0


def run_stop(options: argparse.Namespace) -> int:
    """Stop it, with its report where there is anything to report; returns the exit code."""
    body = {"report": _document(_priced(options, look(options))), **who_and_why(options)}
    answer = ask(options, "POST", address(options, "/stop"), body)
    name = options.name
    print(as_json(answer) if options.json else f"{name}: stopped; open chats keep their version")
    return 0


def run_ship(options: argparse.Namespace) -> int:
    """Ship an arm; returns the exit code."""
    if options.confirm not in (None, "production"):
        raise InvalidRequest(
            f"--confirm names {options.confirm!r}, the label is 'production': nothing is done"
        )
    found = look(options)
    if not options.anyway:
        _refuse_harm(options, found)
    body = {
        "arm": options.arm,
        "report": _document(_priced(options, found)),
        "confirmed": options.confirm is not None,
        "anyway": options.anyway,
        **who_and_why(options),
    }
    answer = ask(options, "POST", address(options, "/ship"), body, timeout_s=SHIP_TIMEOUT_S)
    print(as_json(answer) if options.json else visible(_shipped(options, answer)))
    return 0


def _refuse_harm(options: argparse.Namespace, found: Look) -> None:
    from appliance.experiment.findings import Verdict

    told = []
    arm = found.experiment.arm(options.arm)
    if arm is not None and arm.paused_at is not None:
        told.append("is paused")
    for result in () if found.analysis is None else found.analysis.results:
        if result.arm == options.arm and result.verdict is Verdict.HARMS:
            told.append("harms")
        if result.arm == options.arm and result.verdict is Verdict.VOID:
            told.append("cannot be judged: the split is wrong")
    if told:
        raise InvalidRequest(
            f"arm {options.arm} {' and '.join(told)} (appliance experiment report {options.name}): "
            "nothing is done; --anyway ships it"
        )


def _document(found: Look) -> dict[str, Any]:
    """The report as it is printed and stored; of an experiment with nothing to report, why."""
    from appliance.experiment.report.document import report_document

    if found.analysis is None:
        return {"nothing": found.lacks}
    return report_document(found.subject, found.analysis)


def _priced(options: argparse.Namespace, found: Look) -> Look:
    """The look, with what shipping would cost where an appliance runs that can say so."""
    told = []
    for arm in found.experiment.arms:
        try:
            answer = ask(
                options,
                "GET",
                address(options, f"/cost?arm={quote(arm.name, safe='')}"),
                timeout_s=SHIP_TIMEOUT_S,
            )
        except ApplianceError as error:
            told.append((arm.name, f"What shipping costs the cache is not known: {error.message}."))
            continue
        told.append((arm.name, _cost(answer["cost"]) or "Its prompts are production's already."))
    return replace(found, subject=replace(found.subject, shipping=tuple(told)))


def _shipped(options: argparse.Namespace, answer: Mapping[str, Any]) -> str:
    version = answer["version"][:12]
    if answer["move"] is None:
        return f"production is at {version} already; {options.name} is closed with its report"
    lines = [f"production -> {version}: {options.name}, arm {options.arm}"]
    cost = _cost(answer["cost"])
    return "\n".join([*lines, *([] if cost is None else [cost])])


def _cost(cost: Mapping[str, Any] | None) -> str | None:
    """What making a version everybody's costs the cache; None where prompts stay as they are."""
    if cost is None or (not cost["changes"] and cost["is_certain"]):
        return None
    live = cost["live"]
    cold = [change for change in cost["changes"] if change["goes_cold"]]
    if not cold and not live["cold"]:
        more = cost["tokens_after"] - cost["tokens_before"]
        told = "Shipped, no prompt that was tried begins in another way"
        if more == 0:
            return f"{told}."
        tokens = f"{counted(abs(more), 'token')} {'more' if more > 0 else 'fewer'}"
        return f"{told}; each reply computes {tokens} behind the newest message."
    front = ""
    if cold:
        tokens = cost["tokens_after"] - cold[0]["position"]
        where = f" {cold[0]['where']}" if cold[0]["where"] else ""
        front = f"new chats{where} compute the new front once ({tokens:,} tokens); "
    others = ""
    if cost["elsewhere"]:
        others = f" {counted(cost['elsewhere'], 'live chat')} of other versions keep theirs, too."
    return (
        f"Shipped, {front}{counted(live['chats'], 'live chat')} of production keep their version, and "
        f"would compute {live['tokens']:,} tokens again if they were moved.{others}"
    )
