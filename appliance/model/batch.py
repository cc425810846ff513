"""One step's input to the decoder. Never: scheduling, sampling, page accounting."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appliance.tokens import unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A ragged batch: the new tokens of several sequences, one sequence after the other.

    The new tokens of a sequence are the last ones of its context. Packed fields are little-endian
    u32, as the Rust kernel reads them.

    token_ids: int64 [tokens] on the CPU
    positions: int64 [tokens] on the CPU, position of each token in its sequence
    slots: u32 [tokens], where each token's K/V go: page * page_size + row
    query_starts: u32 [sequences + 1], half-open ranges of tokens
    context_lens: u32 [sequences], positions of each sequence including the new ones
    page_tables: u32, the pages of all sequences, one after the other, in position order
    page_starts: u32 [sequences + 1], half-open ranges of `page_tables`
    logit_rows: int64 [rows] on the CPU, the token rows whose logits are wanted
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: bytes
    query_starts: bytes
    context_lens: bytes
    page_tables: bytes
    page_starts: bytes
    logit_rows: torch.Tensor

    @property
    def tokens(self) -> int:
        """How many new tokens the step computes."""
        return self.token_ids.numel()

    def check(self, *, pages: int, page_size: int) -> None:
        """Assert that every index fits the cache and the others; cheap, before any kernel runs."""
        tokens = self.tokens
        starts, tables = unpack(self.query_starts), unpack(self.page_starts)
        contexts, slots, page_ids = (
            unpack(self.context_lens),
            unpack(self.slots),
            unpack(self.page_tables),
        )
        assert tokens > 0
        assert self.token_ids.shape == self.positions.shape == (tokens,)
        assert self.token_ids.dtype == self.positions.dtype == torch.int64
        assert len(slots) == tokens
        assert max(slots) < pages * page_size
        assert len(starts) == len(tables) == len(contexts) + 1
        assert starts[0] == tables[0] == 0
        assert starts[-1] == tokens
        assert tables[-1] == len(page_ids)
        assert max(page_ids) < pages
        for index, context in enumerate(contexts):
            new = starts[index + 1] - starts[index]
            assert 0 < new <= context <= (tables[index + 1] - tables[index]) * page_size
