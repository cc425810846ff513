"""int8 matrices beside what torch offers on the CPU, and beside the limits of the machine.

`python -m bench.linear [THREADS] [SECONDS]`. The shapes are those of SmolLM2-135M. Weights are cold:
calls go round over more copies than the caches hold (what a model of many layers does). All ways
alternate, the shortest time counts. torch's `quantized.linear_dynamic` has activations of 7 or 8 bits
for the whole tensor; `torch._int_mm` gets numbers that are int8 already, and only multiplies them.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime

import torch
from torch.nn.functional import linear

from appliance import _core
from appliance.model.int_linear import IntLinear
from appliance.model.stack import Stack

SHAPES = {
    "qkv": (960, 576),
    "output": (576, 576),
    "gate_up": (3072, 576),
    "down": (576, 1536),
    "head": (49152, 576),
}
TOKENS = (1, 8, 32, 512)
COLD_BYTES = 80 << 20
COPIES_MAX = 64
ROUNDS_MIN = 3

Run = Callable[[int], object]
"""One call on a copy of the weights."""


def seconds(call: Run, copy: int) -> float:
    """Of one call."""
    started = time.perf_counter()
    call(copy)
    return time.perf_counter() - started


class Limits:
    """The fastest read and the fastest float32 product so far."""

    def __init__(self) -> None:
        self.memory = torch.ones(64 << 20)
        self.matrix = torch.randn(768, 768)
        self.bytes_per_second = 0.0
        self.products_per_second = 0.0

    def measure(self) -> None:
        """Once more."""
        read = min(seconds(lambda _: self.memory.sum(), 0) for _ in range(3))
        product = min(seconds(lambda _: self.matrix @ self.matrix, 0) for _ in range(10))
        self.bytes_per_second = max(self.bytes_per_second, self.memory.nbytes / read)
        self.products_per_second = max(self.products_per_second, 768**3 / product)


class Copies:
    """Copies of a shape's weights in the form of each way."""

    def __init__(self, outputs: int, inputs: int) -> None:
        weights = torch.randn(outputs, inputs)
        self.inputs = inputs
        self.count = max(1, min(COPIES_MAX, COLD_BYTES // weights.numel()))
        stack = Stack([weights], (inputs,), weights.device)
        self.ours = [IntLinear(stack, bits=8) for _ in range(self.count)]
        self.floats = [weights.clone() for _ in range(max(1, self.count // 4))]
        scale = float(weights.abs().max()) / 127
        numbers = torch.quantize_per_tensor(weights, scale, 0, torch.qint8)
        prepack = torch.ops.quantized.linear_prepack
        self.packed = [prepack(numbers.clone(), None) for _ in range(self.count)]
        self.integers = [numbers.int_repr().T.contiguous() for _ in range(self.count)]

    def ways(self, tokens: int) -> dict[str, Run]:
        """Every way by name."""
        x = torch.randn(tokens, self.inputs)
        x_integers = (x * 30).to(torch.int8)
        dynamic = torch.ops.quantized.linear_dynamic
        return {
            "ours": lambda i: self.ours[i](x),
            "float32": lambda i: linear(x, self.floats[i % len(self.floats)]),
            "linear_dynamic": lambda i: dynamic(x, self.packed[i], reduce_range=True),
            "_int_mm": lambda i: torch._int_mm(x_integers, self.integers[i]),
        }


def measure(copies: Copies, tokens: int, budget_s: float) -> dict[str, float]:
    """The shortest time of each way, in seconds; infinite where torch refuses the shape."""
    ways = copies.ways(tokens)
    times = dict.fromkeys(ways, math.inf)
    for name in list(ways):
        try:
            ways[name](0)
        except RuntimeError:
            del ways[name]
    started, rounds = time.perf_counter(), 0
    while rounds < ROUNDS_MIN or time.perf_counter() - started < budget_s:
        for name, way in ways.items():
            times[name] = min(times[name], seconds(way, rounds % copies.count))
        rounds += 1
    return times


@torch.inference_mode()
def main() -> None:
    """Measure everything, then print it: the limits are best at the end."""
    warnings.filterwarnings("ignore")
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    budget_s = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    _core.set_kernel_threads(threads)
    limits, results = Limits(), []
    for name, (outputs, inputs) in SHAPES.items():
        limits.measure()
        copies = Copies(outputs, inputs)
        for tokens in TOKENS:
            times = measure(copies, tokens, budget_s)
            results.append((name, outputs * inputs, tokens, times))
    limits.measure()
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.machine()} torch {torch.__version__}")
    print(
        f"{threads} threads: reads {limits.bytes_per_second / 1e9:.1f} GB/s, "
        f"multiplies {limits.products_per_second / 1e9:.0f} G float32 products/s"
    )
    for name, weights, tokens, times in results:
        ours = times["ours"]
        least = max(
            weights / limits.bytes_per_second, weights * tokens / limits.products_per_second
        )
        others = ", ".join(
            f"{way} {t * 1e6:.0f} us ({t / ours:.2f} of ours)"
            for way, t in times.items()
            if way != "ours"
        )
        print(
            f"{name} x {tokens}: {ours * 1e6:.0f} us, {weights / ours / 1e9:.1f} GB/s, "
            f"{2 * weights * tokens / ours / 1e9:.0f} GFLOP/s, {ours / least:.2f} times the limit; "
            f"{others}"
        )


if __name__ == "__main__":
    main()
