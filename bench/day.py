"""Hit ratio by token on a seeded day of traffic, as the step loop measures it and `simulate` predicts it.

A tiny model on the real step loop and its tiers, with several sizes of device and host memory; all are
also predicted from the trace of the first. Counts alone, nothing is timed. `python -m bench.day [chats]`.
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
from appliance.prompt.chat_format.model_text import ModelText
from bench.day_engine import DayEngine, Measured
from bench.day_traffic import Day, DayShape
from tests.model_fixtures import tiny_model, write_directory

SEED = 1
PAGE_SIZE = 16
CONTEXT = 8_192
CHATS = 64
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHARES = ((0.25, 4.0), (0.125, 4.0), (0.25, 1.0), (0.25, 0.0))
"""Of the chats, how many can have a whole context on the device, and how many in the host tier.

A day of a chat leaves about four contexts: each cut of the front begins a new copy."""


def main() -> None:
    """Measure, predict, print."""
    chats = int(sys.argv[1]) if len(sys.argv) > 1 else CHATS
    shape = DayShape(chats=chats)
    print(f"{chats} chats of {shape.messages} messages, contexts of {CONTEXT} tokens", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny_model(
            kv_heads=1,
            max_position_embeddings=CONTEXT,
            num_hidden_layers=1,
            num_attention_heads=1,
            hidden_size=16,
            head_dim=8,
            intermediate_size=32,
        )
        directory = write_directory(folder / "model", model)
        decoder = load_model(directory, "cpu", 1)
        chat_format = ModelText.load(directory, now=NOW).chat_format
        requests: list[Request] = []
        for device, host in SHARES:
            contexts = chats * CONTEXT // PAGE_SIZE
            sizes = Sizes(
                page_size=PAGE_SIZE,
                pages=int(device * contexts),
                host_slots=int(host * contexts),
                disk_slots=0,
            )
            trace = None if requests else folder / "trace"
            day = Day(shape, chat_format, context_tokens=CONTEXT, seed=SEED)
            writer = None if trace is None else _writer(trace, sizes)
            measured = DayEngine(decoder, day, sizes, context_tokens=CONTEXT, trace=writer).run()
            if trace is not None:
                (recorded,) = read_trace(trace).recorded
                requests = recorded.requests
            print(f"\ndevice {device:.1%}, host {host:.0%} of the chats' contexts")
            _report(measured, Replay(sizes, Policy()).run(requests).hit_ratio)


def _report(measured: Measured, predicted: float) -> None:
    print(
        f"{measured.requests} requests, {measured.prompt_tokens} prompt tokens: "
        f"measured {measured.hit_ratio:.2%}, predicted {predicted:.2%}; "
        f"{measured.evicted_pages} pages evicted, {measured.onloaded_tokens} tokens restored, "
        f"{measured.preempted} preempted, {measured.repeated} requests repeated whole"
    )
    for cause, missed in measured.missed.items():
        share = missed.tokens / measured.prompt_tokens
        unsaid = missed.unsaid / measured.prompt_tokens
        print(
            f"  {cause.value:<36} {missed.requests:>7} requests, missed {share:>6.2%} of all "
            f"prompt tokens, never said before {unsaid:>6.2%}",
            flush=True,
        )


def _writer(path: Path, sizes: Sizes) -> TraceWriter:
    section = Section(
        format=FORMAT,
        started_at=0.0,
        page_size=sizes.page_size,
        pages=sizes.pages,
        host_slots=sizes.host_slots,
        disk_slots=sizes.disk_slots,
        # Of a float32 model with one K/V head of 8 in one layer.
        bytes_per_token=64,
    )
    return TraceWriter(path, section, bytes_max=1 << 40)


if __name__ == "__main__":
    main()
