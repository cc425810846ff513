"""Decode steps as CUDA graphs, one for each size of batch. Never: what a step computes.

A small model's decode step is hundreds of kernels that take less time than their launches; a graph
launches them at once. A graph reads and writes the places it was captured with, so a batch is copied
into static buffers and padded to the next size that has a graph. Rows of padding repeat the sequence
with the shortest context, bit for bit: they write what it writes to where it writes it, and no page has
to be kept for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from appliance.model.batch import StepBatch
from appliance.model.kv_cache import KVCache
from appliance.model.paged_step import PagedStep, paged_step
from appliance.tokens import BYTES_PER_TOKEN

WARM_UPS = 2
"""Runs before a capture, which may not set anything up (as torch's documentation of graphs asks)."""

Replay: TypeAlias = Callable[[], torch.Tensor]
"""Compute once more from what is in the static buffers; returns the same tensor each time."""

Capture: TypeAlias = Callable[[Callable[[], torch.Tensor]], Replay]
"""Make a function over static buffers repeatable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One new token of each sequence: int64 [sequences] token ids and positions, and its pages."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    paged: PagedStep


class DecodeGraphs:
    """The graphs over one cache, and their buffers."""

    def __init__(
        self,
        compute: Callable[[DecodeStep], torch.Tensor],
        capture: Capture,
        *,
        cache: KVCache,
        sequences_max: int,
        context_tokens_max: int,
    ) -> None:
        """Captures all sizes; `compute` gives the logits of every sequence.

        Writes row 0 of page 0, so nothing may be cached yet. Raises RuntimeError when a capture fails.
        """
        self._cache = cache
        self._step = _buffers(
            bucket_sizes(sequences_max)[-1],
            width=-(-context_tokens_max // cache.page_size),
            device=cache.data.device,
        )
        # The largest first: the others then find room in the memory it has left.
        self._replays: dict[int, Replay] = {
            size: capture(partial(compute, _part(self._step, size)))
            for size in reversed(bucket_sizes(sequences_max))
        }

    def takes(self, batch: StepBatch, cache: KVCache) -> bool:
        """Whether there is a graph for this batch: decodes alone, not too many and not too long."""
        sequences = len(batch.context_lens) // BYTES_PER_TOKEN
        return (
            cache is self._cache
            and batch.tokens == sequences
            and sequences <= len(self._step.token_ids)
            and int(batch.positions.max()) < self._step.paged.table.shape[1] * cache.page_size
        )

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Logits of `batch.logit_rows`, float32 [rows, vocab], of a batch that it `takes`."""
        paged = paged_step(batch, self._cache.page_size)
        size = min(size for size in self._replays if size >= batch.tokens)
        padding = [int(paged.contexts.argmin())] * (size - batch.tokens)
        order = torch.tensor([*range(batch.tokens), *padding])
        step = _part(self._step, size)
        step.token_ids.copy_(batch.token_ids[order])
        step.positions.copy_(batch.positions[order])
        step.paged.pages.copy_(paged.pages[order])
        step.paged.rows.copy_(paged.rows[order])
        step.paged.contexts.copy_(paged.contexts[order])
        step.paged.table[:, : paged.table.shape[1]].copy_(paged.table[order])
        # The next replay writes over what this one gives: rows are copied out.
        return self._replays[size]()[batch.logit_rows.to(step.token_ids.device)]


def bucket_sizes(sequences_max: int) -> list[int]:
    """Powers of two up to the first that has room for so many, ascending: padding is less than half."""
    return [1 << power for power in range((sequences_max - 1).bit_length() + 1)]


def cuda_capture(device: torch.device) -> Capture:
    """Captures of one device, which share their memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], torch.Tensor]) -> Replay:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    return capture


def _buffers(sequences: int, *, width: int, device: torch.device) -> DecodeStep:
    """Static buffers for the largest batch; as they are, each sequence is token 0 in row 0 of page 0."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return DecodeStep(
        token_ids=zeros(sequences),
        positions=zeros(sequences),
        paged=PagedStep(
            pages=zeros(sequences),
            rows=zeros(sequences),
            query_starts=torch.arange(sequences + 1, dtype=torch.int32, device=device),
            contexts=zeros(sequences, dtype=torch.int32) + 1,
            table=zeros(sequences, width, dtype=torch.int32),
            queries_max=1,
        ),
    )


def _part(step: DecodeStep, size: int) -> DecodeStep:
    """The first `size` sequences of the buffers, as views."""
    paged = step.paged
    return DecodeStep(
        token_ids=step.token_ids[:size],
        positions=step.positions[:size],
        paged=PagedStep(
            pages=paged.pages[:size],
            rows=paged.rows[:size],
            query_starts=paged.query_starts[: size + 1],
            contexts=paged.contexts[:size],
            table=paged.table[:size],
            queries_max=paged.queries_max,
        ),
    )
