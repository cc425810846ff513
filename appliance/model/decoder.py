"""The llama decoder: token ids and pages in, logits out. Never: sampling, scheduling, page accounting.

Pre-norm blocks with RMSNorm, rotary embeddings, grouped-query attention and SwiGLU, as in
"LLaMA" (arXiv:2302.13971) and "GQA" (arXiv:2305.13245).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.linalg import vector_norm
from torch.nn.functional import embedding, linear, silu

from appliance.errors import ModelError
from appliance.model.attention import Backend, choose_backend
from appliance.model.batch import StepBatch
from appliance.model.config import ModelConfig, read_config
from appliance.model.files import check_model
from appliance.model.kv_cache import KVCache
from appliance.model.manifest import fingerprint
from appliance.model.weights import Layer, Weights, load_weights


class Decoder:
    """A loaded model. Not thread-safe: one step at a time."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        fingerprint: str,
        device: torch.device,
        backend: Backend | None = None,
    ) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.device = device
        self._weights = weights
        self._backend = backend or choose_backend(device)
        self._turns = _rotary_table(config, device)
        self._epsilon = torch.full((1, 1), config.rms_eps, device=device)

    def new_cache(self, pages: int, page_size: int, dtype: torch.dtype = torch.float32) -> KVCache:
        """An empty cache for this model on its device; `dtype`: float32 or int8, of its elements."""
        return KVCache(
            self.config, pages=pages, page_size=page_size, device=self.device, dtype=dtype
        )

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        """Logits float32 [rows, vocab] of `batch.logit_rows`; the new K/V are in `cache` afterwards."""
        batch.check(pages=cache.pages, page_size=cache.page_size)
        weights = self._weights
        attend = self._backend(batch, cache, self.config.heads)
        turns = self._turns[batch.positions.to(self.device)]
        x = embedding(batch.token_ids.to(self.device), weights.embedding)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(x, layer, turns)
            x += linear(attend(index, q, k, v).flatten(1), layer.output)
            gate, up = linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x += linear(silu(gate).mul_(up), layer.down)
        rows = x[batch.logit_rows.to(self.device)]
        return linear(self._norm(rows, weights.final_norm), weights.lm_head)

    def _project(
        self, x: torch.Tensor, layer: Layer, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated q, rotated k and v of a layer's input, each [tokens, its heads, head_dim]."""
        config = self.config
        normed = self._norm(x, layer.attention_norm)
        qkv = linear(normed, layer.qkv).view(len(x), -1, config.head_dim)
        # Pairs lie side by side (see `Layer`), so a rotation is one complex multiplication.
        values_start = config.heads + config.kv_heads
        turning = qkv[:, :values_start].view(len(x), values_start, -1, 2)
        torch.view_as_complex(turning).mul_(turns)
        return qkv[:, : config.heads], qkv[:, config.heads : values_start], qkv[:, values_start:]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm (arXiv:1910.07467) of [tokens, hidden].

        In four operations; torch's own takes a dozen on the CPU, more than a small decode step
        spends in its matrices.
        """
        length = vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=1 / self.config.hidden).rsqrt_()
        return (x * scale).mul_(weight)


def _rotary_table(config: ModelConfig, device: torch.device) -> torch.Tensor:
    """Unit complex numbers, complex64 [context_tokens, 1, head_dim / 2] (arXiv:2104.09864).

    Angles are computed as `transformers` does, in float32, so that logits agree to the last bits.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.arange(config.context_tokens).float()[:, None, None] * frequencies
    return torch.complex(angles.cos(), angles.sin()).to(device)


def load_model(directory: Path, device: str, threads: int | None) -> Decoder:
    """Check, read and place a model. `device`: "cpu", "cuda", "cuda:N", or "auto".

    `threads`: CPU threads for torch, None for its default. Raises ModelError.
    """
    check_model(directory)
    config = read_config(directory)
    target = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    weights = load_weights(directory, config, target)
    return Decoder(config, weights, fingerprint=fingerprint(directory), device=target)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is not known: use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not supported: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} asked for, but this machine has no usable GPU")
    return device
