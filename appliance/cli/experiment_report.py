"""`appliance experiment report | stop | ship`: what an experiment has shown, and what is done about it.

Measures in the database itself, in this process: a report reads every message, and no chat waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

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
from appliance.errors import InvalidRequest

if TYPE_CHECKING:
    from appliance.config import DatabaseConfig

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

STATEMENT_TIMEOUT_MS = 600_000
SHIP_TIMEOUT_S = 300.0


def add_report(kinds: Subparsers) -> None:
    """The options of `report`."""
    parser = kinds.add_parser("report", help="what the arms did to users, the cache and the cost")
    add_name(parser)
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
    """Print the report; returns the exit code."""
    report = _report(options)
    print(as_json(report) if options.json else visible(_text(report)))
    return 0


def run_stop(options: argparse.Namespace) -> int:
    """Stop it, with its report where there is anything to report; returns the exit code."""
    try:
        report = _report(options)
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
        "report": _report(options),
        "confirmed": options.confirm is not None,
        **who_and_why(options),
    }
    answer = ask(options, "POST", address(options, "/ship"), body, timeout_s=SHIP_TIMEOUT_S)
    print(as_json(answer) if options.json else visible(_shipped(options, answer)))
    return 0


def _report(options: argparse.Namespace) -> dict[str, Any]:
    """The report as it is printed and stored."""
    import msgspec

    from appliance.experiment.arm_values import arm_values
    from appliance.experiment.measuring import measure
    from appliance.experiment.metric_files import load_metrics
    from appliance.store.experiments import Experiments
    from appliance.store.pool import connect

    metrics = load_metrics(options.metrics)
    url, config = _database(options)

    async def measured() -> dict[str, Any]:
        pool = await connect(url, config)
        try:
            experiment = await Experiments(pool).get(options.name)
            found = await measure(pool, experiment, metrics)
        finally:
            pool.terminate()
        figures = [
            {
                "metric": figure.metric.name,
                "title": figure.metric.title,
                "unit": figure.metric.unit,
                "direction": figure.metric.direction.value,
                "values": figure.values,
            }
            for figure in arm_values(found)
        ]
        told: dict[str, Any] = msgspec.to_builtins(
            {
                "experiment": experiment.name,
                "hours": round(found.hours, 2),
                "arms": found.users.arms,
                "versions": [arm.version for arm in experiment.arms],
                "users": found.users.counts,
                "crossed": found.users.crossed,
                "primary": experiment.options.primary,
                "warm_up_minutes": found.warm_up_minutes,
                "warm_up_hit_ratio": found.warm_up_hit_ratio,
                "metrics": figures,
            }
        )
        return told

    return asyncio.run(measured())


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


def _text(report: Mapping[str, Any]) -> str:
    arms = report["arms"]
    lines = [
        f"{report['experiment']}: {report['hours']:.1f} hours, "
        + ", ".join(
            f"{arm} {counted(count, 'user')}"
            for arm, count in zip(arms, report["users"], strict=True)
        )
    ]
    if report["crossed"]:
        lines.append(
            f"{counted(report['crossed'], 'user')} appeared in two arms and are left out of all figures"
        )
    lines += [
        f"arm {arm}: nobody is in it yet"
        for arm, count in zip(arms, report["users"], strict=True)
        if not count
    ]
    lines.append(f"{'':<38}" + "".join(f"{arm:>16}" for arm in arms))
    for figure in report["metrics"]:
        mark = "* " if figure["metric"] in report["primary"] else "  "
        values = "".join(f"{_value(value, figure['unit']):>16}" for value in figure["values"])
        lines.append(f"{mark}{figure['title']:<36}{values}  {figure['unit']}")
    ratios = ", ".join(
        f"{arm} {'no reply' if ratio is None else percent(ratio, 1)}"
        for arm, ratio in zip(arms, report["warm_up_hit_ratio"], strict=True)
    )
    lines.append(
        f"left out of the cache's figures: the first {report['warm_up_minutes']} minutes, while it "
        f"had nothing of the new versions (found in it then: {ratios})"
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
    lines = [f"production -> {version}: {options.name}, arm {options.arm}"]
    cost = answer["cost"]
    if cost is not None and cost["change"] is not None:
        lines.append(
            f"new chats compute the new front once; {counted(cost['live'], 'live chat')} keep their "
            f"version, and would compute {cost['tokens_to_recompute']:,} tokens again if they were moved"
        )
    return "\n".join(lines)
