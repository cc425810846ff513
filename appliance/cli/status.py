"""`appliance status`: the whole box on one screen, whatever of it is down. Never: changes anything."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from appliance.cli.db_choice import is_there
from appliance.cli.exit_codes import EXIT_BAD_INPUT, EXIT_FOUND_WRONG
from appliance.cli.installed import CONFIG
from appliance.cli.plain_text import as_json, percent, size, visible
from appliance.cli.service_states import TARGET
from appliance.dbops.limits import STOP_AGE
from appliance.errors import ConfigError, NotReadable

WIDTH = 80
LABEL = 12


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
    """Ask every part and print; returns the exit code: 1 when chats cannot be answered, 2 when this user
    may not read the settings, and so does not hear."""
    if options.alert_rules:
        print(alert_rules(), end="")
        return 0
    from appliance.cli.status_parts import gather, gather_without_settings
    from appliance.credentials import load_as_service

    if options.config == CONFIG and not is_there(CONFIG):
        raise ConfigError(
            f"no appliance is installed here: there is no {CONFIG} (--config FILE: one of `serve`)"
        )
    try:
        told = gather(load_as_service(options.config))
    except NotReadable as error:
        told = gather_without_settings(error.message)
    print(as_json(told) if options.json else "\n".join(lines_of(told)))
    if "settings" in told:
        return EXIT_BAD_INPUT
    return 0 if told["server"].get("ready") else EXIT_FOUND_WRONG


def alert_rules() -> str:
    """The text of one rules file: of the appliance as a whole, then of its database."""
    from appliance.dbops.monitoring.metrics import alert_rules as database_rules

    whole = (resources.files("appliance.server") / "alerts.yml").read_text(encoding="utf-8")
    return whole + database_rules().partition("\ngroups:\n")[2]


def lines_of(told: Mapping[str, Any]) -> Iterator[str]:
    """The screen, in lines of 80 letters; a word that is longer keeps its line."""
    model = f", model {told['model']['name']}" if "model" in told else ""
    yield from _wrapped("appliance", f"{told['version']}{model}")
    for label, text in _parts(told):
        yield from _wrapped(label, text)


def _wrapped(label: str, text: str) -> list[str]:
    lines = textwrap.wrap(
        visible(text),
        WIDTH,
        initial_indent=f"{label:<{LABEL}}",
        subsequent_indent=" " * LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [label]


def _parts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each line's label and text."""
    yield from _services(told)
    if "settings" in told:
        yield from _away("settings", told["settings"])
        return
    server = told["server"]
    yield from _away("server", server) or _server(server, told["version"])
    engines = told["engines"]
    # Of several each has one line: the screen has 24. `appliance cache stats` has the rest.
    shown = _engine if len(engines) == 1 else _engine_line
    for name, engine in engines.items():
        yield from _away(name, engine) or shown(name, engine)
    for name, lines in (("database", _database), ("journal", _journal)):
        yield from _away(name, told[name]) or lines(told[name])


def _away(name: str, part: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, f"AWAY: {part['away']}")] if "away" in part else []


def _services(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    states = told["services"]
    if not states:
        return
    active = [
        name.removesuffix(".service").removeprefix("appliance-")
        for name, state in states.items()
        if name.endswith(".service") and state["active"] == "active"
    ]
    yield "services", f"{', '.join(active) or 'none'} active"
    if told["is_stopped"]:
        yield "", f"STOPPED: systemctl start {TARGET}"
    failed = [name for name, state in states.items() if state["active"] == "failed"]
    if failed:
        yield "", f"FAILED: {', '.join(failed)}"
    for name, state in states.items():
        if state["restarting"] is not None:
            yield "", f"RESTARTING: {name} {state['restarting']}"


def _server(server: Mapping[str, Any], own_version: str) -> Iterator[tuple[str, str]]:
    state = "ready" if server["ready"] else f"NOT READY ({'; '.join(server['reasons'])})"
    other = "" if server["version"] == own_version else f", version {server['version']}"
    yield "server", f"{state}, process {server['pid']}{other}"
    yield "  streams", f"{server['streams']} of {server['streams_max']}"
    shares = server["index_coverage"].items()
    if shares:
        yield "  coverage", ", ".join(f"{role} {share:.1%}" for role, share in shares)


def _engine(name: str, engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = engine["values"]

    def number(key: str) -> str:
        return f"{values[key]:,.0f}" if key in values else "?"

    def tier(kind: str) -> str:
        used, most = (values.get(f"tier_{kind}_bytes{end}", 0) for end in ("", "_max"))
        off = " (OFF: it failed)" if values.get(f"tier_{kind}_off") else ""
        return f"{kind} {size(used)} of {size(most)}{off}" if most else f"no {kind} tier"

    model = engine["model_fingerprint"][:12]
    pages = (
        f"{number('pages_cached')} cached, {number('pages_free')} free of {number('pages_total')}"
    )
    lost = {
        "eviction": f"{number('evicted_pages')} pages",
        "preemption": f"{number('recomputed_tokens')} tokens",
        "restart": f"{number('unknown_node')} requests",
        "damage": f"{number('tier_rejected_pages')} pages",
    }
    queue = f"{number('running')} running, {number('waiting')} waiting"
    audits = f"{number('audits')} of {number('audited_tokens')} tokens"
    alarm = "; ALARM: what is cached was wrong" if values.get("audit_alarm") else ""
    yield name, f"on {engine['device']}, process {engine['pid']}, {_memory(values)}model {model}"
    yield "  requests", f"{queue}; hits {_hits(values)} of {number('prompt_tokens')} prompt tokens"
    yield "  pages", f"{pages}; {tier('host')}; {tier('disk')}"
    yield "  lost to", ", ".join(f"{cause} {what}" for cause, what in lost.items())
    yield "  audits", f"{audits}, {number('audit_failures')} failed{alarm}"


def _engine_line(name: str, engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = engine["values"]
    queue = f"{values.get('running', 0):.0f} running, {values.get('waiting', 0):.0f} waiting"
    alarm = "; ALARM" if values.get("audit_alarm") else ""
    yield (
        name,
        f"{engine['device']}, {_memory(values)}{queue}, hits {_hits(values)}{alarm}",
    )


def _memory(values: Mapping[str, float]) -> str:
    return f"{size(values['rss_bytes'])}, " if "rss_bytes" in values else ""


def _hits(values: Mapping[str, float]) -> str:
    return percent(values.get("prefix_hit_tokens", 0), values.get("prompt_tokens", 0))


def _database(database: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    age, schema = database["xid_age"], database["schema_version"] or "none yet"
    server = f"PostgreSQL {database['server_version']}, schema {schema}"
    yield "database", f"{server}, {size(database['bytes'])}, {database['sessions']} sessions"
    yield (
        "  age",
        f"{age:,} transactions; writes stop at {STOP_AGE:,} ({age / STOP_AGE:.1%})",
    )


def _journal(journal: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "journal", _journal_text(journal)


def _journal_text(journal: Mapping[str, Any]) -> str:
    if "entries" not in journal:
        return f"{size(journal['bytes'])} on disk; the server knows what of it still waits"
    if not journal["entries"]:
        return "empty: every finished turn is in the database"
    reason = f" ({journal['reason']})" if "reason" in journal else ""
    return (
        f"{journal['entries']} entries wait, the oldest {journal['oldest_s']} s; "
        f"{size(journal['bytes'])} of {size(journal['bytes_max'])}; writes {journal['writes']}{reason}"
    )
