"""What attention over pages in place needs to know of one step. Never: a device, a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch

from appliance.model.batch import StepBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """Where a step's new K/V go, and which pages its sequences have; all tensors on one device.

    pages, rows: int64 [tokens]; query_starts: int32 [sequences + 1]; contexts: int32 [sequences], the new
    positions included; table: int32 [sequences, width], the pages of each sequence, and behind its
    context any page: kernels look at no entry there. queries_max: the most new tokens of a sequence.
    """

    pages: torch.Tensor
    rows: torch.Tensor
    query_starts: torch.Tensor
    contexts: torch.Tensor
    table: torch.Tensor
    queries_max: int

    def to(self, device: torch.device) -> PagedStep:
        """The same on another device."""
        return PagedStep(
            pages=self.pages.to(device),
            rows=self.rows.to(device),
            query_starts=self.query_starts.to(device),
            contexts=self.contexts.to(device),
            table=self.table.to(device),
            queries_max=self.queries_max,
        )


def paged_step(batch: StepBatch, page_size: int) -> PagedStep:
    """The step of a batch, on the CPU."""
    slots = _numbers(batch.slots).astype(numpy.int64)
    starts, contexts = _numbers(batch.query_starts), _numbers(batch.context_lens)
    page_starts, page_ids = _numbers(batch.page_starts), _numbers(batch.page_tables)
    counts = -(-contexts.astype(numpy.int64) // page_size)
    table = numpy.zeros((len(contexts), int(counts.max())), dtype=numpy.int32)
    for row, first, count in zip(table, page_starts[:-1], counts, strict=True):
        row[:count] = page_ids[first : first + count]
    return PagedStep(
        pages=torch.from_numpy(slots // page_size),
        rows=torch.from_numpy(slots % page_size),
        query_starts=torch.from_numpy(starts.astype(numpy.int32)),
        contexts=torch.from_numpy(contexts.astype(numpy.int32)),
        table=torch.from_numpy(table),
        queries_max=int((starts[1:] - starts[:-1]).max()),
    )


def _numbers(packed: bytes) -> numpy.ndarray:
    return numpy.frombuffer(packed, dtype=numpy.uint32)
