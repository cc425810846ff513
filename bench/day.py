"""Hit ratio by token on a seeded day of traffic, measured and as `simulate` predicts it.

First a scaled day on the real step loop with a tiny model: with its pages, half and a quarter of them,
all also predicted from the trace of the first. Then a big day on the index alone, with memory as a
share of what all chats together would fill. Nothing is timed. `python -m bench.day [chats]`.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from appliance.engine.replay import Policy, Replay, Sizes
from appliance.engine.trace import TraceWriter
from appliance.engine.trace_file import FORMAT, Request, Section, read_trace
from appliance.model.decoder import load_model
from appliance.prompt.model_text import ModelText
from bench import workload
from bench.day_engine import DayEngine, Measured
from bench.day_index import DayIndex
from bench.day_traffic import Day, DayShape
from tests.model_fixtures import tiny_model, write_directory

SEED = 1
PAGE_SIZE = 16
NOW = datetime(2026, 1, 1, tzinfo=UTC)

SCALED = DayShape(
    chats=16,
    messages=40,
    tenants=3,
    characters=3,
    character_tokens=40,
    user_tokens=8,
    reply_tokens=8,
    messages_before=16,
    sessions=3,
)
SCALED_CONTEXT = 1_024
SCALED_PAGES = 600

BIG_CHATS = 500
BIG_CONTEXT = 8_192
TOKENS_PER_CHAT = 32_000
"""That a day of a chat leaves in a cache with room for all: each cut of the front begins a new copy."""
SHARES = ((0.03, 0.0), (0.015, 0.0), (0.03, 1.0), (0.015, 1.0), (0.03, 0.5), (0.03, 0.25))
"""Of all that the day leaves: what the device and the host hold."""
BYTES_PER_TOKEN = 1
"""Nothing here depends on it."""


def main() -> None:
    """Measure, predict, print."""
    chats = int(sys.argv[1]) if len(sys.argv) > 1 else BIG_CHATS
    with tempfile.TemporaryDirectory() as folder:
        _scaled(Path(folder))
        _big(Path(folder), chats)


def _scaled(folder: Path) -> None:
    directory = write_directory(
        folder / "model", tiny_model(max_position_embeddings=SCALED_CONTEXT)
    )
    decoder = load_model(directory, "cpu", 1)
    chat_format = ModelText.load(directory, now=NOW).chat_format
    print(f"{SCALED.chats} chats of {SCALED.messages} messages on the step loop")
    requests: list[Request] | None = None
    for pages in (SCALED_PAGES, SCALED_PAGES // 2, SCALED_PAGES // 4):
        sizes = Sizes(page_size=PAGE_SIZE, pages=pages, host_slots=0, disk_slots=0)
        path = folder / f"scaled{pages}"
        measured = DayEngine(
            decoder,
            Day(SCALED, chat_format, context_tokens=SCALED_CONTEXT, seed=SEED),
            pages=pages,
            page_size=PAGE_SIZE,
            context_tokens=SCALED_CONTEXT,
            trace=_writer(path, sizes, onload_tokens_min=None),
        ).run()
        requests = requests or _requests(path)
        _report(f"{pages} pages", measured, requests, sizes, Policy(onload_tokens_min=None))


def _big(folder: Path, chats: int) -> None:
    chat_format = ModelText.load(workload.model_directory(), now=NOW).chat_format
    shape = DayShape(chats=chats)
    print(f"{chats} chats of {shape.messages} messages on the index alone")
    pages = chats * TOKENS_PER_CHAT // PAGE_SIZE
    requests: list[Request] | None = None
    for device, host in SHARES:
        sizes = Sizes(
            page_size=PAGE_SIZE,
            pages=int(device * pages),
            host_slots=int(host * pages),
            disk_slots=0,
        )
        path = folder / f"big{device}-{host}"
        measured = DayIndex(
            Day(shape, chat_format, context_tokens=BIG_CONTEXT, seed=SEED),
            sizes,
            trace=_writer(path, sizes, onload_tokens_min=0) if requests is None else None,
        ).run()
        requests = requests or _requests(path)
        name = f"device {device:.1%}, host {host:.0%} of all"
        _report(name, measured, requests, sizes, Policy(onload_tokens_min=0))


def _report(
    name: str, measured: Measured, requests: list[Request], sizes: Sizes, policy: Policy
) -> None:
    predicted = Replay(sizes, policy).run(requests)
    print(
        f"{name}: {measured.requests} requests, {measured.prompt_tokens} prompt tokens, "
        f"measured {measured.hit_ratio:.2%}, predicted {predicted.hit_ratio:.2%}, "
        f"{measured.evicted_pages} pages evicted, {measured.repeated} requests repeated whole",
        flush=True,
    )


def _writer(path: Path, sizes: Sizes, *, onload_tokens_min: int | None) -> TraceWriter:
    section = Section(
        format=FORMAT,
        started_at=0.0,
        page_size=sizes.page_size,
        pages=sizes.pages,
        host_slots=sizes.host_slots,
        disk_slots=sizes.disk_slots,
        onload_tokens_min=onload_tokens_min,
        bytes_per_token=BYTES_PER_TOKEN,
    )
    return TraceWriter(path, section, bytes_max=1 << 40)


def _requests(path: Path) -> list[Request]:
    (recorded,) = read_trace(path).recorded
    return recorded.requests


if __name__ == "__main__":
    main()
