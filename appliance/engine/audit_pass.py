"""One slice of a path through the model, into pages that a lease holds. Never: chooses the slice."""

from __future__ import annotations

import numpy as np
import torch

from appliance import tokens
from appliance._core import Lease
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.tokens import TokenIds


class AuditPass:
    """Forward passes of one sequence, apart from the batches of requests."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache

    def run(self, lease: Lease, token_ids: TokenIds, start: int, stop: int) -> torch.Tensor:
        """Compute positions `[start, stop)`; logits, float32 [vocab], of the last of them.

        Those before `start` have their K/V in the lease's pages.
        """
        page_size = self._cache.page_size
        pages = np.frombuffer(lease.page_table, dtype=np.uint32)[: -(-stop // page_size)]
        at = np.arange(start, stop, dtype=np.int64)
        ids = np.frombuffer(tokens.head(token_ids, stop), dtype=np.uint32)[start:]
        batch = StepBatch(
            token_ids=torch.from_numpy(ids.astype(np.int64)),
            positions=torch.from_numpy(at),
            slots=(pages[at // page_size] * page_size + at % page_size).astype(np.uint32).tobytes(),
            query_starts=tokens.pack([0, stop - start]),
            context_lens=tokens.pack([stop]),
            page_tables=pages.tobytes(),
            page_starts=tokens.pack([0, len(pages)]),
            logit_rows=torch.tensor([stop - start - 1], dtype=torch.int64),
        )
        return self._decoder.forward(batch, self._cache)[0]
