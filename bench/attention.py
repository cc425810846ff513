"""CPU paged attention against what the machine can do and against torch, in one run.

`python -m bench.attention [threads]` prints one line a figure; all cores by default. With one thread
the time is that of the CPU, which a busy machine disturbs less than that of the wall.

The limits are measured between the cases: a streaming read (`torch.sum` over float32) and a matrix
product (`torch.mm` in float32, all of it multiply-adds); the faster figure of all rounds counts. A case
is bound by what takes longer, reading K and V once or its multiply-adds. Pages lie anywhere, and no
reader is as fast there as in a stream: beside it stands what torch needs to add the same pages up in
the order of the table (`embedding_bag`, all bytes taken for float32; int8 without its scales).

torch gets `scaled_dot_product_attention` on contiguous copies of K and V, in the fastest of three forms,
with and without the time of the copies. K and V are cold: the calls go round over more layers than the
caches of the CPU hold.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy
import torch
from torch.nn.functional import embedding_bag, scaled_dot_product_attention

from appliance import _core
from appliance.tokens import pack

PAGE_SIZE = 16
COLD_BYTES = 200 << 20
SECONDS_PER_CASE = 3.0
ROUNDS_MIN = 3

Run = Callable[[int], object]
"""One call on a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch of equal sequences over K and V of one shape."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    sequences: int
    queries: int
    context: int

    @property
    def flops(self) -> float:
        """Two for each multiply-add of scores and mix, over what the queries see."""
        seen = sum(self.context - self.queries + i + 1 for i in range(self.queries))
        return 4.0 * self.head_dim * self.heads * self.sequences * seen

    @property
    def rows(self) -> int:
        """K rows."""
        return self.sequences * self.kv_heads * self.context


def cases() -> list[Case]:
    """Decode and prefill of the three kinds of attention."""
    shapes = [("MQA 16x1", 16, 1, 64), ("GQA 9x3", 9, 3, 64), ("MHA 16x16", 16, 16, 64)]
    loads = [
        ("decode 16 x 2048", 16, 1, 2048),
        ("prefill 512 at 0", 1, 512, 512),
        ("prefill 512 at 2048", 1, 512, 2560),
    ]
    return [
        Case(
            name=f"{shape}, {load}",
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            sequences=sequences,
            queries=queries,
            context=context,
        )
        for load, sequences, queries, context in loads
        for shape, heads, kv_heads, head_dim in shapes
    ]


def zeros(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """As the model allocates its cache: numpy asks for huge pages."""
    return torch.from_numpy(numpy.zeros(shape, dtype=dtype))


class Layers:
    """K and V of some layers in shuffled pages, float32 and int8, and copies in order for torch."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pages = case.sequences * case.context // PAGE_SIZE
        self.shape = (pages, case.kv_heads, PAGE_SIZE, case.head_dim)
        self.count = 1 + COLD_BYTES // (8 * math.prod(self.shape))
        self.q = torch.randn(case.sequences * case.queries, case.heads, case.head_dim)
        self.out = torch.empty_like(self.q)
        self.table = torch.randperm(pages)
        self.floats = [zeros((2, *self.shape), "f4").normal_() for _ in range(self.count)]
        self.numbers = [zeros((2, *self.shape), "i1") for _ in range(self.count)]
        self.scales = [zeros((2, *self.shape[:3]), "f4") for _ in range(self.count)]
        self.copy_rows = self._copy_rows()
        for layer in range(self.count):
            self._quantise(layer)
        self.copies = [self.gather(layer) for layer in range(self.count)]
        self.sides = torch.stack([self.table, self.table + pages], 1).flatten()
        self.bags = torch.arange(torch.get_num_threads()) * (2 * pages // torch.get_num_threads())
        # As in the model: packed once for all layers of a step.
        count = case.sequences + 1
        self.query_starts = pack(range(0, case.queries * count, case.queries))
        self.context_lens = pack([case.context] * case.sequences)
        self.page_tables = pack(self.table.tolist())
        self.page_starts = pack(range(0, pages + 1, pages // case.sequences))

    def _copy_rows(self) -> torch.Tensor:
        """Rows of a cache in the order [sequences, kv_heads, context]."""
        table = self.table.view(self.case.sequences, 1, -1, 1)
        heads = torch.arange(self.case.kv_heads).view(1, -1, 1, 1)
        rows = (table * self.case.kv_heads + heads) * PAGE_SIZE + torch.arange(PAGE_SIZE)
        return rows.flatten()

    def _quantise(self, layer: int) -> None:
        pages, kv_heads, page_size, head_dim = self.shape
        rows = self.floats[layer].transpose(2, 3).flatten(1, 2).contiguous()
        numbers = self._addresses(self.numbers[layer])
        _core.store_kv(
            rows[0].data_ptr(),
            rows[1].data_ptr(),
            numbers[0],
            numbers[1],
            pack(range(pages * page_size)),
            scales=self._addresses(self.scales[layer]),
            kv_heads=kv_heads,
            head_dim=head_dim,
            pages=pages,
            page_size=page_size,
        )

    @staticmethod
    def _addresses(pair: torch.Tensor) -> tuple[int, int]:
        return pair[0].data_ptr(), pair[1].data_ptr()

    def gather(self, layer: int) -> list[torch.Tensor]:
        """K and V as [sequences, kv_heads, context, head_dim], one copy each."""
        case = self.case
        shape = (case.sequences, case.kv_heads, case.context, case.head_dim)
        flat = self.floats[layer].view(2, -1, case.head_dim)
        return [torch.index_select(side, 0, self.copy_rows).view(shape) for side in flat]

    def gather_int8(self, layer: int) -> list[torch.Tensor]:
        """The same from int8: float32 values."""
        case = self.case
        shape = (case.sequences, case.kv_heads, case.context, case.head_dim)
        flat = self.numbers[layer].view(2, -1, case.head_dim)
        scales = self.scales[layer].view(2, -1, 1)
        copies = []
        for numbers, scale in zip(flat, scales, strict=True):
            copy = torch.index_select(numbers, 0, self.copy_rows).float()
            copies.append(copy.mul_(torch.index_select(scale, 0, self.copy_rows)).view(shape))
        return copies

    def attend(self, layer: int, *, int8: bool) -> None:
        """The Rust kernel."""
        case = self.case
        pages, kv_heads, page_size, head_dim = self.shape
        cache = self.numbers[layer] if int8 else self.floats[layer]
        _core.paged_attention(
            self.out.data_ptr(),
            self.q.data_ptr(),
            *self._addresses(cache),
            scales=self._addresses(self.scales[layer]) if int8 else None,
            query_starts=self.query_starts,
            context_lens=self.context_lens,
            page_tables=self.page_tables,
            page_starts=self.page_starts,
            heads=case.heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            pages=pages,
            page_size=page_size,
            scale=1 / math.sqrt(head_dim),
        )

    def read(self, layer: int, *, int8: bool) -> None:
        """Adds up K and V, page by page in the order of the table."""
        cache = self.numbers[layer] if int8 else self.floats[layer]
        pages = cache.view(-1).view(torch.float32).view(2 * self.shape[0], -1)
        embedding_bag(self.sides, pages, self.bags, mode="sum")


class Torch:
    """`scaled_dot_product_attention` in the form that is fastest for a case."""

    def __init__(self, layers: Layers) -> None:
        case = layers.case
        shape = (case.sequences, case.queries, case.heads, case.head_dim)
        self.query = layers.q.view(shape).transpose(1, 2).contiguous()
        self.group = case.heads // case.kv_heads
        folded = (case.sequences, case.kv_heads, self.group * case.queries, case.head_dim)
        self.folded = self.query.view(folded)
        self.causal = case.queries == case.context
        self.mask, self.folded_mask = None, None
        if case.queries > 1:
            first = case.context - case.queries
            mask = torch.ones(case.queries, case.context, dtype=torch.bool).tril(first)
            self.mask = None if self.causal else mask
            self.folded_mask = mask.repeat(self.group, 1)
        forms = {"enable_gqa": self._gqa, "expand": self._expand, "folded queries": self._folded}
        if self.group == 1:
            forms = {"plain": self._expand}
        k, v = layers.copies[0]
        times = {form: self._seconds(call, k, v) for form, call in forms.items()}
        self.form = min(times, key=lambda form: times[form])
        self.call = forms[self.form]

    @staticmethod
    def _seconds(
        call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], k: torch.Tensor, v: torch.Tensor
    ) -> float:
        return best(lambda _: call(k, v), 1, 3)

    def _gqa(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(
            self.query, k, v, attn_mask=self.mask, is_causal=self.causal, enable_gqa=True
        )

    def _expand(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = (k.shape[0], k.shape[1], self.group, *k.shape[2:])
        k, v = (side.unsqueeze(2).expand(shape).flatten(1, 2) for side in (k, v))
        return scaled_dot_product_attention(
            self.query, k, v, attn_mask=self.mask, is_causal=self.causal
        )

    def _folded(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(self.folded, k, v, attn_mask=self.folded_mask)


def seconds(call: Run, layer: int) -> float:
    """Of one call."""
    now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    started = now()
    call(layer)
    return now() - started


def best(call: Run, layers: int, rounds: int) -> float:
    """The shortest of some calls, in seconds."""
    return min(seconds(call, i % layers) for i in range(rounds))


class Limits:
    """The fastest read and the fastest matrix product so far, with one thread and with all."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.memory = zeros((64 << 20,), "f4").fill_(1.0)
        self.matrix = torch.randn(768, 768)
        self.bytes_per_second = dict.fromkeys(sorted({1, threads}), 0.0)
        self.flops_per_second = dict.fromkeys(sorted({1, threads}), 0.0)

    def measure(self) -> None:
        """Once more."""
        for threads in self.bytes_per_second:
            torch.set_num_threads(threads)
            read = self.memory.nbytes / best(lambda _: self.memory.sum(), 1, 3)
            product = 2 * 768**3 / best(lambda _: self.matrix @ self.matrix, 1, 10)
            self.bytes_per_second[threads] = max(self.bytes_per_second[threads], read)
            self.flops_per_second[threads] = max(self.flops_per_second[threads], product)
        torch.set_num_threads(self.threads)

    def of(self, case: Case, *, int8: bool) -> tuple[float, str]:
        """The shortest time of a case in seconds, and what binds it."""
        row_bytes = case.head_dim + 4 if int8 else 4 * case.head_dim
        read = 2 * case.rows * row_bytes / self.bytes_per_second[self.threads]
        compute = case.flops / self.flops_per_second[self.threads]
        return max((read, "memory"), (compute, "multiply-adds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The shortest times of a case, in seconds."""

    case: Case
    ours: dict[str, float]
    copied: dict[str, float]
    read: dict[str, float]
    torch_alone: float
    torch_form: str


def measure(case: Case) -> Result:
    """All ways alternate, so that a slow moment of the machine falls on all of them."""
    layers = Layers(case)
    peer = Torch(layers)
    ways: dict[str, Run] = {
        "float32": lambda i: layers.attend(i, int8=False),
        "int8": lambda i: layers.attend(i, int8=True),
        "read float32": lambda i: layers.read(i, int8=False),
        "read int8": lambda i: layers.read(i, int8=True),
        "torch": lambda i: peer.call(*layers.copies[i]),
        "torch float32": lambda i: peer.call(*layers.gather(i)),
        "torch int8": lambda i: peer.call(*layers.gather_int8(i)),
    }
    times = dict.fromkeys(ways, math.inf)
    started, rounds = time.perf_counter(), 0
    while rounds < ROUNDS_MIN or time.perf_counter() - started < SECONDS_PER_CASE:
        for name, way in ways.items():
            times[name] = min(times[name], seconds(way, rounds % layers.count))
        rounds += 1
    return Result(
        case=case,
        ours={name: times[name] for name in ("float32", "int8")},
        copied={name: times[f"torch {name}"] for name in ("float32", "int8")},
        read={name: times[f"read {name}"] for name in ("float32", "int8")},
        torch_alone=times["torch"],
        torch_form=peer.form,
    )


def show(result: Result, limits: Limits) -> None:
    """One line for float32 and one for int8."""
    peak = limits.flops_per_second[limits.threads]
    of_peak = 100 * result.case.flops / result.torch_alone / peak
    for kind, ours in result.ours.items():
        limit, binds = limits.of(result.case, int8=kind == "int8")
        print(
            f"{result.case.name}, {kind}: {ours * 1e3:.2f} ms, "
            f"{ours / limit:.2f} times the limit ({binds}, {limit * 1e3:.2f} ms), "
            f"{100 * result.case.flops / ours / peak:.0f} % of multiply-adds; "
            f"pages read by torch {result.read[kind] * 1e3:.2f} ms; "
            f"torch ({result.torch_form}) {result.torch_alone * 1e3:.2f} ms: "
            f"{result.torch_alone / ours:.1f} times ours, {of_peak:.0f} % of multiply-adds; "
            f"with the copies {result.copied[kind] * 1e3:.2f} ms: "
            f"{result.copied[kind] / ours:.1f} times ours"
        )


@torch.inference_mode()
def main() -> None:
    """Measure everything, then print it: the limits are best at the end."""
    torch.manual_seed(0)
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    _core.set_kernel_threads(threads)
    limits = Limits(threads)
    results = []
    for case in cases():
        limits.measure()
        results.append(measure(case))
    limits.measure()
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.machine()} torch {torch.__version__}")
    for count in limits.bytes_per_second:
        print(
            f"{count} threads: reads {limits.bytes_per_second[count] / 1e9:.1f} GB/s, "
            f"multiplies {limits.flops_per_second[count] / 1e9:.0f} GFLOP/s"
        )
    for result in results:
        show(result, limits)


if __name__ == "__main__":
    main()
