"""Runs the chunks of one step on the decoder and contains failures. Never: chooses chunks or tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from appliance.engine.chunk import Chunk
from appliance.errors import ApplianceError, GenerationFailed, InsufficientMemory
from appliance.model.batch import StepBatch
from appliance.model.decode_graphs import cuda_capture
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache

log = logging.getLogger("appliance.engine")

Outcome = Tensor | ApplianceError | None
"""What a chunk gave: float32 [vocab] logits if it samples, else None; or its failure."""


class DeviceLost(Exception):
    """The device can compute nothing any more; only a new process helps."""


class Runner:
    """Owns the K/V tensor's writes: partial-page copies and forward passes."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache

    def copy_rows(self, copy: tuple[int, int, int]) -> None:
        """Do a lease's (source page, target page, rows) copy."""
        self._cache.copy_rows(*copy)

    def warm_up(self, *, sequences_max: int, context_tokens_max: int) -> None:
        """One tiny forward, so that the first request does not pay for lazy set-up; on a GPU, captures of
        decode steps of up to so many sequences and so long a context.

        Writes row 0 of page 0, so nothing may be cached yet.
        """
        zero, one = _packed([0]), _packed([1])
        batch = StepBatch(
            token_ids=torch.zeros(1, dtype=torch.int64),
            positions=torch.zeros(1, dtype=torch.int64),
            slots=zero,
            query_starts=zero + one,
            context_lens=one,
            page_tables=zero,
            page_starts=zero + one,
            logit_rows=torch.zeros(1, dtype=torch.int64),
        )
        self._decoder.forward(batch, self._cache)
        if self._decoder.device.type != "cuda":
            return
        try:
            self._decoder.capture_decodes(
                self._cache,
                cuda_capture(self._decoder.device),
                sequences_max=sequences_max,
                context_tokens_max=context_tokens_max,
            )
        except RuntimeError as error:
            # Steps are then launched kernel by kernel: slower, and the same.
            log.warning("decode_graphs_off", exc_info=error)

    def run(self, chunks: Sequence[Chunk]) -> list[Outcome]:
        """Compute the chunks' K/V, and logits where they sample; one outcome a chunk, in order.

        When the step fails, memory held by the allocator is given back and it is tried once more;
        when it fails again, each chunk runs alone and only those that fail alone have failed.
        (Forward passes write the same K/V to the same slots, so repeating one is harmless.)
        Raises DeviceLost.
        """
        try:
            return list(self._forward(chunks))
        except Exception as error:
            self._survive(error, chunks)
        try:
            return list(self._forward(chunks))
        except Exception as error:
            self._survive(error, chunks)
            if len(chunks) == 1:
                return [_failure(error)]
        return [self._run_alone(chunk) for chunk in chunks]

    def _run_alone(self, chunk: Chunk) -> Outcome:
        try:
            return self._forward([chunk])[0]
        except Exception as error:
            self._survive(error, [chunk])
            return _failure(error)

    def _forward(self, chunks: Sequence[Chunk]) -> list[Tensor | None]:
        logits = self._decoder.forward(build_batch(chunks, self._cache.page_size), self._cache)
        rows = iter(logits)
        return [next(rows) if chunk.samples else None for chunk in chunks]

    def _survive(self, error: Exception, chunks: Sequence[Chunk]) -> None:
        """Log a failed forward and make ready for the next; raises DeviceLost if there is none."""
        log.error(
            "step_failed",
            exc_info=error,
            extra={
                "request_ids": ",".join(chunk.sequence.request.request_id for chunk in chunks),
                "tokens": sum(chunk.count for chunk in chunks),
            },
        )
        if isinstance(error, torch.AcceleratorError):
            raise DeviceLost(str(error)) from error
        if self._decoder.device.type == "cuda":
            try:
                torch.cuda.synchronize(self._decoder.device)
            except RuntimeError as lost:
                raise DeviceLost(str(lost)) from lost
            torch.cuda.empty_cache()


def build_batch(chunks: Sequence[Chunk], page_size: int) -> StepBatch:
    """The decoder's input for chunks of leased sequences."""
    token_ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    page_tables: list[bytes] = []
    query_starts, page_starts, context_lens, logit_rows = [0], [0], [], []
    for chunk in chunks:
        sequence = chunk.sequence
        assert sequence.lease is not None
        start, stop = sequence.computed, sequence.computed + chunk.count
        pages = np.frombuffer(sequence.lease.page_table, dtype=np.uint32)[: -(-stop // page_size)]
        at = np.arange(start, stop, dtype=np.int64)
        positions.append(at)
        token_ids.append(np.asarray(sequence.ids(start, stop), dtype=np.int64))
        slots.append((pages[at // page_size] * page_size + at % page_size).astype(np.uint32))
        page_tables.append(pages.tobytes())
        query_starts.append(query_starts[-1] + chunk.count)
        page_starts.append(page_starts[-1] + len(pages))
        context_lens.append(stop)
        if chunk.samples:
            logit_rows.append(query_starts[-1] - 1)
    return StepBatch(
        token_ids=torch.from_numpy(np.concatenate(token_ids)),
        positions=torch.from_numpy(np.concatenate(positions)),
        slots=np.concatenate(slots).tobytes(),
        query_starts=_packed(query_starts),
        context_lens=_packed(context_lens),
        page_tables=b"".join(page_tables),
        page_starts=_packed(page_starts),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
    )


def _failure(error: Exception) -> ApplianceError:
    # torch's CPU allocator has no exception type of its own.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        return InsufficientMemory("the engine ran out of memory on this request")
    return GenerationFailed("the engine failed on this request")


def _packed(values: Sequence[int]) -> bytes:
    return np.asarray(values, dtype=np.uint32).tobytes()
