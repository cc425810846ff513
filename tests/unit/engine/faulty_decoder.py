"""A real decoder that fails where a test says so."""

from __future__ import annotations

from collections.abc import Callable

import torch

from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache


class FaultyDecoder(Decoder):
    """The decoder given, with `fault` called before each of its steps."""

    def __init__(self, decoder: Decoder, fault: Callable[[StepBatch], None]) -> None:
        vars(self).update(vars(decoder))
        self.fault = fault

    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        self.fault(batch)
        return super().forward(batch, cache)
