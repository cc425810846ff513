"""`appliance experiment report | stop | ship`: what an experiment has shown, and what is done about it.

Measures in the database itself, in this process: a report reads every message, and no chat waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from appliance.cli.admin_client import ask
from appliance.cli.experiment_options import (
    add_common,
    add_metrics,
    add_name,
    add_who_and_why,
    address,
    who_and_why,
)
from appliance.cli.plain_text import as_json, counted, percent, visible
from appliance.errors import InvalidRequest, NotRunning

if TYPE_CHECKING:
    from appliance.config import DatabaseConfig
    from appliance.experiment.reporting import Report

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

STATEMENT_TIMEOUT_MS = 600_000
SHIP_TIMEOUT_S = 300.0
GUARD = "guardrail"
"""Who pauses an arm that does harm."""


def add_report(kinds: Subparsers) -> None:
    """The options of `report`."""
    parser = kinds.add_parser("report", help="what the arms did to users, the cache and the cost")
    add_name(parser)
    parser.add_argument(
        "--html", type=Path, default=None, metavar="FILE", help="write it as one page, too"
    )
    parser.add_argument(
        "--pause", action="store_true", help="pause the arms whose guardrails are breached"
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
    parser = kinds.add_parser("ship", help="move label production to an arm's version")
    add_name(parser)
    parser.add_argument("arm", metavar="ARM")
    parser.add_argument(
        "--confirm", metavar="LABEL", help="`production` again, where the label is protected"
    )
    add_who_and_why(parser)
    add_metrics(parser)
    add_common(parser)


def run_report(options: argparse.Namespace) -> int:
    """Print the report, write its page, pause what does harm; returns the exit code."""
    report = _report(options)
    if options.html is not None:
        from appliance.experiment.report.page import report_page

        options.html.write_text(report_page(report.subject, report.analysis), encoding="utf-8")
    print(as_json(report.document()) if options.json else visible(_text(report)))
    if options.pause:
        _pause(options, report.breached)
    return 0


def _pause(options: argparse.Namespace, breached: Mapping[str, str]) -> None:
    """Pause the arms whose guardrails are breached."""
    for arm, guards in breached.items():
        body = {"arm": arm, "author": GUARD, "message": f"guardrail breached: {guards}"}
        ask(options, "POST", address(options, "/pause"), body)
        if not options.json:
            print(visible(f"{options.name}, arm {arm}: paused, guardrail breached: {guards}"))


def run_stop(options: argparse.Namespace) -> int:
    """Stop it, with its report where there is anything to report; returns the exit code."""
    try:
        report = _report(options).document()
    except InvalidRequest as nothing:
        report = {"nothing": nothing.message}
    body = {"report": report, **who_and_why(options)}
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
    body = {
        "arm": options.arm,
        "report": _report(options).document(),
        "confirmed": options.confirm is not None,
        **who_and_why(options),
    }
    answer = ask(options, "POST", address(options, "/ship"), body, timeout_s=SHIP_TIMEOUT_S)
    print(as_json(answer) if options.json else visible(_shipped(options, answer)))
    return 0


def _report(options: argparse.Namespace) -> Report:
    """The report of this moment."""
    from appliance.experiment.metric_files import load_metrics
    from appliance.experiment.reporting import report_of
    from appliance.store.experiments import Experiments
    from appliance.store.pool import connect

    metrics = load_metrics(options.metrics)
    url, config = _database(options)

    async def made() -> Report:
        pool = await connect(url, config)
        try:
            experiment = await Experiments(pool).get(options.name)
            arms = [arm.name for arm in experiment.arms]
            shipping = await asyncio.to_thread(_shipping, options, arms)
            return await report_of(pool, experiment, metrics, shipping)
        finally:
            pool.terminate()

    return asyncio.run(made())


def _shipping(options: argparse.Namespace, arms: Sequence[str]) -> dict[str, str]:
    """What shipping each arm would cost; nothing while no appliance runs here."""
    found = {}
    try:
        for arm in arms:
            path = address(options, f"/cost?arm={quote(arm, safe='')}")
            found[arm] = _cost(ask(options, "GET", path, timeout_s=SHIP_TIMEOUT_S)["cost"])
    except NotRunning:
        return {}
    return found


def _cost(cost: Mapping[str, Any] | None) -> str:
    if cost is None:
        return "Nothing: production is at its version already."
    if cost["change"] is None:
        return "Nothing: its prompts are those of production, token for token."
    return (
        f"The front of its prompts is computed once, {cost['tokens_after']:,} tokens. "
        f"{counted(cost['live'], 'live chat')} keep their version; moved to it they would compute "
        f"{cost['tokens_to_recompute']:,} tokens again."
    )


def _database(options: argparse.Namespace) -> tuple[str, DatabaseConfig]:
    """The address of the appliance's database, and settings for long questions."""
    import msgspec

    from appliance.cli.postgres import with_own_postgres
    from appliance.config import DatabaseConfig
    from appliance.credentials import load_as_service
    from appliance.dbops.cluster.cluster import socket_url

    if options.config is not None:
        database = with_own_postgres(load_as_service(options.config)).database
    else:
        from appliance.cli.demo_paths import demo_paths

        database = DatabaseConfig(url=socket_url(demo_paths(options.data_dir).postgres_dir))
    assert database.url is not None
    patient = msgspec.structs.replace(database, statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    return database.url, patient


def _text(report: Report) -> str:
    from appliance.experiment.report.document import report_text

    arms, analysis = report.analysis.arms, report.analysis
    counts = zip(arms, analysis.counts, strict=True)
    lines = [
        report_text(report.subject, analysis),
        ", ".join(f"{arm}: {counted(count, 'user')}" for arm, count in counts),
    ]
    if analysis.crossed:
        lines.append(f"{counted(analysis.crossed, 'user')} in two arms: left out of all figures")
    lines.append(f"{'':<38}" + "".join(f"{arm:>16}" for arm in arms))
    for figure in report.values:
        metric = figure.metric
        mark = "* " if metric.name in analysis.plan.deciding else "  "
        values = "".join(f"{_value(value, metric.unit):>16}" for value in figure.values)
        lines.append(f"{mark}{metric.title:<36}{values}  {metric.unit}")
    ratios = ", ".join(
        f"{arm} {'no reply' if ratio is None else percent(ratio, 1)}"
        for arm, ratio in zip(arms, analysis.warm_up_hit_ratio, strict=True)
    )
    lines.append(
        f"left out of the cache's figures: the first {analysis.warm_up_minutes} minutes, while it had "
        f"nothing of the new versions (found in it then: {ratios})"
    )
    return "\n".join(lines)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "no data"
    return f"{value:.1%}" if unit.startswith("share") else f"{value:,.4g}"


def _shipped(options: argparse.Namespace, answer: Mapping[str, Any]) -> str:
    version = answer["version"][:12]
    if answer["move"] is None:
        return f"production is at {version} already; {options.name} is closed with its report"
    return f"production -> {version}: {options.name}, arm {options.arm}\n{_cost(answer['cost'])}"
