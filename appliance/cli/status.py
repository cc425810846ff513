"""`appliance status`: the whole box on one screen, whatever of it is down. Never: changes anything."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from appliance.cli.exit_codes import EXIT_FOUND_WRONG
from appliance.cli.installed import CONFIG
from appliance.cli.plain_text import as_json, percent, size, visible

XID_LIMIT = 2_000_000_000
"""Roughly 2^31 less PostgreSQL's safety margin: where it takes no more writes."""


def add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    parser = commands.add_parser("status", help="the whole box on one screen")
    parser.add_argument("--config", type=Path, default=CONFIG, help=f"default: {CONFIG}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--alert-rules",
        action="store_true",
        help="print the rules file for Prometheus that goes with /metrics instead",
    )


def run_status(options: argparse.Namespace) -> int:
    """Ask every part and print; returns the exit code, 1 when chats cannot be answered."""
    if options.alert_rules:
        print(alert_rules(), end="")
        return 0
    from appliance.cli.status_parts import gather
    from appliance.credentials import load_as_service

    told = gather(load_as_service(options.config))
    print(as_json(told) if options.json else visible("\n".join(lines_of(told))))
    return 0 if told["server"].get("ready") else EXIT_FOUND_WRONG


def alert_rules() -> str:
    """The text of one rules file: of the appliance as a whole, then of its database."""
    from appliance.dbops.monitoring.metrics import alert_rules as database_rules

    whole = (resources.files("appliance.server") / "alerts.yml").read_text(encoding="utf-8")
    return whole + database_rules().partition("\ngroups:\n")[2]


def lines_of(told: Mapping[str, Any]) -> Iterator[str]:
    """The screen."""
    yield f"appliance {told['version']}, model {told['model']['name']}"
    yield from _services(told["services"])
    yield _line("server", told["server"], _server)
    for name, engine in told["engines"].items():
        if "away" in engine:
            yield _line(name, engine, str)
        else:
            yield from _engine(name, engine)
    yield _line("database", told["database"], _database)
    yield _line("journal", told["journal"], _journal)


def _line(name: str, part: Mapping[str, Any], words: Any) -> str:
    return f"{name:<12}" + (f"AWAY: {part['away']}" if "away" in part else words(part))


def _services(states: Mapping[str, Any]) -> Iterator[str]:
    processes = {name: state for name, state in states.items() if name.endswith(".service")}
    if not processes:
        return
    failed = [name for name, state in states.items() if state["active"] == "failed"]
    active = [n.removesuffix(".service") for n, s in processes.items() if s["active"] == "active"]
    yield f"{'services':<12}{', '.join(active) or 'none'} active"
    if failed:
        yield f"{'':<12}FAILED: {', '.join(failed)}"
    for name, state in states.items():
        if state["restarting"] is not None:
            yield f"{'':<12}RESTARTING: {name} {state['restarting']}"


def _server(server: Mapping[str, Any]) -> str:
    state = "ready" if server["ready"] else f"NOT READY ({'; '.join(server['reasons'])})"
    shares = ", ".join(f"{role} {share:.1%}" for role, share in server["index_coverage"].items())
    return (
        f"{state}, process {server['pid']}, version {server['version']}; "
        f"{server['streams']} of {server['streams_max']} streams"
        + (f"; coverage {shares}" if shares else "")
    )


def _engine(name: str, engine: Mapping[str, Any]) -> Iterator[str]:
    values: Mapping[str, float] = engine["values"]

    def number(key: str) -> str:
        return f"{values[key]:.0f}"

    yield (
        f"{name:<12}on {engine['device']}, process {engine['pid']}, {size(values['rss_bytes'])}, "
        f"model {engine['model_fingerprint'][:12]}"
    )
    yield f"{'  queue':<12}{number('running')} running, {number('waiting')} waiting"
    yield (
        f"{'  pages':<12}{number('pages_cached')} cached, {number('pages_free')} free of "
        f"{number('pages_total')}; host {size(values['tier_host_bytes'])} of "
        f"{size(values['tier_host_bytes_max'])}; disk {size(values['tier_disk_bytes'])} of "
        f"{size(values['tier_disk_bytes_max'])}" + (" (OFF)" if values["tier_disk_off"] else "")
    )
    yield (
        f"{'  hits':<12}{percent(values['prefix_hit_tokens'], values['prompt_tokens'])} of "
        f"{number('prompt_tokens')} prompt tokens; lost to: eviction of {number('evicted_pages')} pages, "
        f"preemption {number('recomputed_tokens')} tokens, restart {number('unknown_node')} requests, "
        f"rejected {number('tier_rejected_pages')} pages"
    )
    alarm = "; ALARM: what is cached was wrong" if values["audit_alarm"] else ""
    yield (
        f"{'  audits':<12}{number('audits')} of {number('audited_tokens')} tokens, "
        f"{number('audit_failures')} failed{alarm}"
    )


def _database(database: Mapping[str, Any]) -> str:
    age = database["xid_age"]
    return (
        f"PostgreSQL {database['server_version']}, schema {database['schema_version'] or 'none yet'}, "
        f"{size(database['bytes'])}, {database['sessions']} sessions; "
        f"age {age} transactions ({age / XID_LIMIT:.1%} of what stops it)"
    )


def _journal(journal: Mapping[str, Any]) -> str:
    if "entries" not in journal:
        return f"{size(journal['bytes'])} on disk; the server knows what of it still waits"
    if not journal["entries"]:
        return "empty: every finished turn is in the database"
    reason = f" ({journal['reason']})" if "reason" in journal else ""
    return (
        f"{journal['entries']} entries wait, the oldest {journal['oldest_s']} s; "
        f"{size(journal['bytes'])} of {size(journal['bytes_max'])}; writes {journal['writes']}{reason}"
    )
