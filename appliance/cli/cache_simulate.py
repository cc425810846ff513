"""`appliance cache simulate`: what a recorded trace would find with other sizes, as a table or as JSON.

Owns the options, the combinations and the printing. Never: asks a running engine.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from appliance.cli.exit_codes import EXIT_BAD_INPUT
from appliance.log import complain

if TYPE_CHECKING:
    from appliance.engine.replay import Outcome
    from appliance.engine.trace_file import Recorded, Section, TraceContents

RUNS_MAX = 64
PAGE_SIZE_MAX = 256
"""As for `engine.page_size`."""
SLOTS_MAX = (1 << 32) - 1
"""Of all tokens of a device, and of the pages of a lower tier: the index numbers them in 32 bits."""
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(?P<number>[0-9]{1,18})(?P<unit>|KiB|MiB|GiB|TiB)")
_FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Of the recorded device memory, when no size is given."""
POLICIES = ("engine", "restore-never", "plain-lru")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is played. `device_bytes` None: room for every page that the trace ever has."""

    device_bytes: int | None
    host_bytes: int
    disk_bytes: int
    page_size: int
    policy: str


def add_simulate(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand's options; lists are separated by commas, and every combination is played."""
    parser = subparsers.add_parser(
        "simulate", help="predict the hit ratio for other sizes from a recorded trace"
    )
    parser.add_argument(
        "trace", type=Path, metavar="TRACE", help="a file that engine.trace_path named"
    )
    defaults = {"device": "half, once, twice and four times the recorded"}
    for tier in ("device", "host", "disk"):
        parser.add_argument(
            f"--{tier}-bytes",
            type=_list_of(_bytes),
            default=None,
            metavar="SIZES",
            help=f"such as 512MiB,2GiB (default: {defaults.get(tier, 'the recorded')})",
        )
    parser.add_argument(
        "--page-size",
        type=_list_of(_page_size),
        default=None,
        metavar="TOKENS",
        help="such as 16,32 (default: the recorded)",
    )
    parser.add_argument(
        "--policy",
        type=_list_of(_policy),
        default=["engine"],
        metavar="NAMES",
        help=f"of {', '.join(POLICIES)} (default: engine)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_simulate(options: argparse.Namespace) -> int:
    """Read, play, print. Raises InvalidTrace and OSError for a file that cannot be read."""
    from appliance.engine.trace_file import read_trace

    trace = read_trace(options.trace)
    section = trace.recorded[0].section
    for warning in _warnings(trace):
        complain(f"appliance: {warning}", logging.WARNING)
    cases = [
        Case(device_bytes=device, host_bytes=host, disk_bytes=disk, page_size=size, policy=policy)
        for device, host, disk, size, policy in itertools.product(
            [*_device_bytes(options.device_bytes, section), None],
            options.host_bytes or [section.host_slots * _page_bytes(section)],
            options.disk_bytes or [section.disk_slots * _page_bytes(section)],
            options.page_size or [section.page_size],
            options.policy,
        )
    ]
    if len(cases) > RUNS_MAX:
        complain(f"appliance: {len(cases)} combinations, at most {RUNS_MAX} are played at once")
        return EXIT_BAD_INPUT
    runs = [(case, _play(trace.recorded, case)) for case in cases]
    print(_json(trace, runs) if options.json else _table(trace, runs))
    return 0


def _device_bytes(asked: Sequence[int] | None, section: Section) -> Sequence[int]:
    recorded = section.pages * _page_bytes(section)
    return asked or [int(factor * recorded) for factor in _FACTORS]


def _page_bytes(section: Section) -> int:
    return section.page_size * section.bytes_per_token


def _play(recorded: Sequence[Recorded], case: Case) -> Outcome:
    """The sum over the sections: each starts with nothing cached, as its engine did."""
    from appliance.engine.replay import Outcome, Policy, Replay, Sizes

    policy = Policy(
        restores=case.policy != "restore-never", names_conversations=case.policy != "plain-lru"
    )
    outcomes = []
    for part in recorded:
        page_bytes = case.page_size * part.section.bytes_per_token
        pages = (
            _pages_for_all(part, case.page_size)
            if case.device_bytes is None
            else case.device_bytes // page_bytes
        )
        sizes = Sizes(
            page_size=case.page_size,
            pages=min(max(pages, 1), SLOTS_MAX // case.page_size),
            host_slots=min(case.host_bytes // page_bytes, SLOTS_MAX),
            disk_slots=min(case.disk_bytes // page_bytes, SLOTS_MAX),
        )
        outcomes.append(Replay(sizes, policy).run(part.requests))
    return Outcome.of_all(outcomes)


def _pages_for_all(part: Recorded, page_size: int) -> int:
    """No fewer than all requests together can fill: each its own tokens, and a page that begins them."""
    reserved = max((mark.reserved for r in part.requests for mark in r.marks), default=0)
    own = sum(2 + (r.length - r.first) // page_size for r in part.requests)
    return own + 2 + reserved // page_size


def _warnings(trace: TraceContents) -> list[str]:
    parts = trace.recorded
    restarts = len(parts) - 1
    told = list(trace.warnings)
    if restarts:
        told.append(f"{restarts} restarts in the trace: each engine is played with an empty cache")
    if len({part.section.bytes_per_token for part in parts}) > 1:
        told.append("the engines of the trace had models of different K/V sizes")
    return told


def _measured(trace: TraceContents) -> tuple[int, int]:
    """(prompt tokens, found) as the engines counted them."""
    requests = [request for part in trace.recorded for request in part.requests]
    return sum(r.prompt_tokens for r in requests), sum(r.hit_tokens for r in requests)


def _table(trace: TraceContents, runs: Sequence[tuple[Case, Outcome]]) -> str:
    prompt, hit = _measured(trace)
    requests = sum(len(part.requests) for part in trace.recorded)
    section = trace.recorded[0].section
    lines = [
        f"recorded: {requests} requests, {prompt} prompt tokens, {_percent(hit, prompt)} found; "
        f"{section.pages} pages of {section.page_size} tokens, {_size(_page_bytes(section))} each",
        "",
        f"{'device':>10} {'host':>10} {'disk':>10} {'page':>5} {'policy':<15} {'found':>8} "
        f"{'to gain':>8} {'evicted':>9} {'restored':>10} {'delayed':>8} {'refused':>8}",
    ]
    best = max(outcome.hit_ratio for _, outcome in runs)
    for case, outcome in runs:
        device = "all" if case.device_bytes is None else _size(case.device_bytes)
        lines.append(
            f"{device:>10} {_size(case.host_bytes):>10} {_size(case.disk_bytes):>10} "
            f"{case.page_size:>5} {case.policy:<15} {outcome.hit_ratio:>8.2%} "
            f"{100 * (best - outcome.hit_ratio):>8.2f} {outcome.evicted_pages:>9} "
            f"{outcome.onloaded_tokens:>10} {outcome.delayed:>8} {outcome.refused:>8}"
        )
    lines += [
        "",
        "found: of all prompt tokens. to gain: points up to the best line. evicted: pages. restored: "
        "tokens from",
        "lower tiers. delayed: requests that waited for pages. refused: that never fit.",
    ]
    orphans = runs[0][1].orphans
    if orphans:
        lines.append(f"{orphans} requests go on from one that is not in the trace: left out.")
    return "\n".join(lines)


def _json(trace: TraceContents, runs: Sequence[tuple[Case, Outcome]]) -> str:
    import msgspec

    prompt, hit = _measured(trace)
    answer = {
        "recorded": {
            "requests": sum(len(part.requests) for part in trace.recorded),
            "prompt_tokens": prompt,
            "hit_tokens": hit,
            "hit_ratio": hit / prompt if prompt else 0.0,
            "sections": [msgspec.structs.asdict(part.section) for part in trace.recorded],
        },
        "warnings": _warnings(trace),
        "runs": [
            asdict(case) | {"outcome": asdict(outcome), "hit_ratio": outcome.hit_ratio}
            for case, outcome in runs
        ],
    }
    return msgspec.json.format(msgspec.json.encode(answer)).decode()


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none"


def _size(count: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _UNITS[unit]
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def _list_of(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parsed(text: str) -> list[T]:
        return [parse(item.strip()) for item in text.split(",")]

    return parsed


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512MiB or 2GiB")
    return int(found["number"]) * _UNITS[found["unit"]]


def _page_size(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PAGE_SIZE_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a page size, from 1 to {PAGE_SIZE_MAX} tokens"
        )
    return int(text)


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(POLICIES)}")
    return text
