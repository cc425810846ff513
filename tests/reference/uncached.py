"""What a model says without any cache: one forward over all tokens. Slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance import tokens
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder


def uncached_logits(
    decoder: Decoder, token_ids: Sequence[int], kv_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits after each token, float32 [tokens, vocab]; every token is computed anew."""
    count = len(token_ids)
    batch = StepBatch(
        token_ids=torch.tensor(list(token_ids), dtype=torch.int64),
        positions=torch.arange(count),
        slots=tokens.pack(range(count)),
        query_starts=tokens.pack([0, count]),
        context_lens=tokens.pack([count]),
        page_tables=tokens.pack([0]),
        page_starts=tokens.pack([0, 1]),
        logit_rows=torch.arange(count),
    )
    return decoder.forward(batch, decoder.new_cache(1, count, kv_dtype))
