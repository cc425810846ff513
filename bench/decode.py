"""A decode step of a real model beside the limits of the machine, and where its time goes.

`python -m bench.decode MODEL_DIRECTORY [THREADS] [SECONDS]`, from the repository's root: products in
registers are measured by `cargo bench`. Steps of all forms alternate; the shortest counts, beside the
median. Where the time goes is told of steps whose layers are not done in one call. A step's limit is
the larger of two: reading every weight and every key and value once, at the rate at which this machine
reads as many bytes, and computing every product at the rate of registers alone.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from appliance import _core
from appliance.model.attention import Attend
from appliance.model.batch import StepBatch
from appliance.model.cpu_attention import CpuAttention
from appliance.model.decoder import Decoder, load_model
from appliance.model.kv_cache import ELEMENT_TYPES, KVCache, KVDtype, bytes_per_page
from appliance.model.weight_form import WeightDtype

FORMS: tuple[tuple[WeightDtype, KVDtype], ...] = (
    ("float32", "float32"),
    ("int12", "float32"),
    ("int12", "float16"),
    ("int12", "int8"),
    ("int8", "float16"),
)
"""Weights, and keys and values; the third is the CPU's default."""
BYTES_PER_WEIGHT = {"float32": 4.0, "int12": 1.5, "int8": 1.0}
BATCHES = (1, 8, 32)
CONTEXT = 1000
PAGE_SIZE = 16
ROUNDS_MIN = 5
PROFILED = 20

PLACES = {
    "matrices": ("'linear'", "'add_linear'", "'gate'", "nn.linear"),
    "attention": ("paged_attention",),
    "store": ("store_kv",),
    "rotation": ("rotate",),
    "norms": ("rms_norm",),
}
"""Where a step's time goes, by what the profiler calls the functions that are not Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Bytes read and products computed a second, by all threads."""

    bytes_per_second: float
    float32_per_second: float
    int16_per_second: float


@dataclass(slots=True, kw_only=True)
class Steps:
    """The decode steps of a form at a batch size; times in seconds."""

    weights: WeightDtype
    kv: KVDtype
    decoder: Decoder
    batch: StepBatch
    cache: KVCache
    times: list[float] = field(default_factory=list)

    def run(self) -> None:
        """One step."""
        started = time.perf_counter()
        self.decoder.forward(self.batch, self.cache)
        self.times.append(time.perf_counter() - started)

    def places(self) -> dict[str, float]:
        """Parts of the time of a step in single calls, by place; the profiler slows Python down, so its
        part is high."""
        profile = cProfile.Profile()
        whole, self.decoder.backend = self.decoder.backend, single_calls
        profile.enable()
        for _ in range(PROFILED):
            self.decoder.forward(self.batch, self.cache)
        profile.disable()
        self.decoder.backend = whole
        stats = pstats.Stats(profile).get_stats_profile()
        total = stats.total_tt
        parts = dict.fromkeys(PLACES, 0.0)
        for name, function in stats.func_profiles.items():
            for place, marks in PLACES.items():
                if any(mark in name for mark in marks):
                    parts[place] += function.tottime / total
        return parts | {"Python and torch": 1 - sum(parts.values())}


def single_calls(batch: StepBatch, cache: KVCache, heads: int) -> Attend:
    """The CPU's back end in a form that no layer knows, so that it goes step by step."""
    attend = CpuAttention(batch, cache, heads)
    return lambda *arguments: attend(*arguments)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="MODEL_DIRECTORY")
    parser.add_argument(
        "threads", type=int, nargs="?", default=len(os.sched_getaffinity(0)), metavar="THREADS"
    )
    parser.add_argument("seconds", type=float, nargs="?", default=10.0, metavar="SECONDS")
    return parser.parse_args()


def main() -> None:
    """Measure everything, then print it."""
    options = _options()
    directory, threads, budget_s = options.directory, options.threads, options.seconds
    torch.manual_seed(0)
    _core.set_kernel_threads(threads)
    decoders = {
        form: load_model(directory, "cpu", threads, weight_dtype=form)
        for form in dict.fromkeys(weights for weights, _ in FORMS)
    }
    config = decoders["float32"].config
    weights = weight_count(decoders["float32"])
    machine = measure_machine(threads, weights)
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.machine()} torch {torch.__version__}")
    print(
        f"{threads} threads: reads {machine.bytes_per_second / 1e9:.1f} GB/s, "
        f"{machine.float32_per_second / 1e9:.0f} G float32 products/s, "
        f"{machine.int16_per_second / 1e9:.0f} G int16 products/s; "
        f"{weights / 1e6:.0f} M weights are multiplied, {CONTEXT} tokens of context"
    )
    print(
        "| weights | K/V | batch | step | median | limit | times the limit | where the time goes |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in BATCHES:
        batch, pages = decode_batch(size, config.vocab_size)
        all_steps = [
            Steps(
                weights=form,
                kv=kv,
                decoder=decoders[form],
                batch=batch,
                cache=decoders[form].new_cache(pages, PAGE_SIZE, ELEMENT_TYPES[kv]),
            )
            for form, kv in FORMS
        ]
        alternate(all_steps, budget_s)
        for steps in all_steps:
            row_bytes = bytes_per_page(config, 1, ELEMENT_TYPES[steps.kv])
            read = weights * BYTES_PER_WEIGHT[steps.weights] + size * (CONTEXT + 1) * row_bytes
            is_float = steps.weights == "float32"
            rate = machine.float32_per_second if is_float else machine.int16_per_second
            limit = max(read / machine.bytes_per_second, weights * size / rate if rate else 0.0)
            print(table_row(steps, size, limit))


def weight_count(decoder: Decoder) -> int:
    """How many weights a step multiplies: all matrices, and the head."""
    config = decoder.config
    width = (config.heads + 2 * config.kv_heads) * config.head_dim
    mlp = (3 if config.gated else 2) * config.intermediate * config.hidden
    layer = config.hidden * (width + config.heads * config.head_dim) + mlp
    return config.layers * layer + config.vocab_size * config.hidden


def measure_machine(threads: int, nbytes: int) -> Machine:
    """The best rates. Reads are of `nbytes`, as a step reads its weights, in turn from as many places as
    there are forms: the steps alternate, so that a large cache holds no weights until their next turn."""
    places = [torch.ones(nbytes // 4) for _ in FORMS]
    best = 0.0
    for number in range(10 * len(places)):
        memory = places[number % len(places)]
        started = time.perf_counter()
        memory.sum()
        best = max(best, memory.nbytes / (time.perf_counter() - started))
    command = ["cargo", "bench", "-q", "-p", "appliance-kernels", "--locked", "--bench", "peak"]
    peak = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return Machine(
        bytes_per_second=best,
        float32_per_second=threads * peak["float32_per_second"],
        int16_per_second=threads * peak["int16_per_second"],
    )


def decode_batch(size: int, vocab_size: int) -> tuple[StepBatch, int]:
    """One new token for each of `size` sequences, and how many pages they have."""
    each = -(-(CONTEXT + 1) // PAGE_SIZE)

    def packed(values: range) -> bytes:
        return np.asarray(values, dtype=np.uint32).tobytes()

    batch = StepBatch(
        token_ids=torch.randint(vocab_size, (size,)),
        positions=torch.full((size,), CONTEXT),
        slots=packed(range(CONTEXT, CONTEXT + size * each * PAGE_SIZE, each * PAGE_SIZE)),
        query_starts=packed(range(size + 1)),
        context_lens=np.full(size, CONTEXT + 1, dtype=np.uint32).tobytes(),
        page_tables=packed(range(size * each)),
        page_starts=packed(range(0, size * each + 1, each)),
        logit_rows=torch.arange(size),
    )
    return batch, size * each


def alternate(all_steps: list[Steps], budget_s: float) -> None:
    """Steps of every form in turn, until the time is spent."""
    for steps in all_steps:
        # Pages that were never written are all one page of zeros, which no cache would miss.
        random = torch.randn(steps.cache.data.shape[2:])
        if steps.cache.scales is not None:
            random, steps.cache.scales[:] = random.mul(40).clamp(-127, 127), 0.02
        steps.cache.data[:] = random
        steps.run()
        steps.times.clear()
    started, rounds = time.perf_counter(), 0
    while rounds < ROUNDS_MIN or time.perf_counter() - started < budget_s:
        for steps in all_steps:
            steps.run()
        rounds += 1


def table_row(steps: Steps, size: int, limit_s: float) -> str:
    """A line of the table."""
    best, median = min(steps.times), statistics.median(steps.times)
    places = ", ".join(f"{place} {part:.0%}" for place, part in steps.places().items())
    return (
        f"| {steps.weights} | {steps.kv} | {size} | {best * 1e3:.2f} ms | {median * 1e3:.2f} ms | "
        f"{limit_s * 1e3:.2f} ms | {best / limit_s:.2f} | {places} |"
    )


if __name__ == "__main__":
    main()
