"""`appliance cache stats`: what the cache holds, found and proved. Never: changes anything."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from appliance.cli.admin_client import add_place, ask
from appliance.cli.plain_text import as_json, percent, size


def add_stats(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options."""
    parser = subparsers.add_parser("stats", help="what the cache holds, found and proved")
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_stats(options: argparse.Namespace) -> int:
    """Ask and print; returns the exit code."""
    answer = ask(options, "GET", "/cache/stats")
    print(as_json(answer) if options.json else _text(answer))
    return 0


def _text(answer: Mapping[str, Any]) -> str:
    engines: Mapping[str, Mapping[str, float] | None] = answer["engines"]
    lines = []
    for name, values in engines.items():
        if len(engines) > 1:
            lines.append(f"{name}:")
        lines += ["away: it does not answer"] if values is None else _engine_lines(values)
    return "\n".join([*lines, coverage_line(answer["index_coverage"])])


def _engine_lines(engine: Mapping[str, float]) -> list[str]:
    def number(name: str) -> str:
        return f"{engine[name]:.0f}"

    return [
        f"device pages  {number('pages_cached')} cached, {number('pages_leased')} in use by requests "
        f"alone, {number('pages_free')} free of {number('pages_total')}; {number('pages_pinned')} pinned",
        f"host memory   {number('pages_host')} pages, {size(engine['tier_host_bytes'])} of "
        f"{size(engine['tier_host_bytes_max'])}",
        f"disk          {number('pages_disk')} pages, {size(engine['tier_disk_bytes'])} of "
        f"{size(engine['tier_disk_bytes_max'])}" + (", OFF" if engine["tier_disk_off"] else ""),
        f"found         {percent(engine['prefix_hit_tokens'], engine['prompt_tokens'])} of "
        f"{number('prompt_tokens')} prompt tokens",
        f"evicted       {number('evicted_pages')} pages; restored {number('tier_restored_pages')}, "
        f"rejected {number('tier_rejected_pages')}",
        f"audits        {number('audits')} of {number('audited_tokens')} tokens, "
        f"{number('audit_failures')} failed, {number('audit_pages_dropped')} pages dropped"
        + ("; ALARM" if engine["audit_alarm"] else ""),
    ]


def coverage_line(shares: Mapping[str, float]) -> str:
    """The index coverage by role in one line."""
    told = ", ".join(f"{role} {share:.1%}" for role, share in shares.items())
    return f"coverage      {told or 'no turn has gone on from another yet'}"
