"""The llama decoder: token ids and pages in, logits out. Never: sampling, scheduling, page accounting.

Pre-norm blocks with RMSNorm, rotary embeddings, grouped-query attention and SwiGLU, as in
"LLaMA" (arXiv:2302.13971) and "GQA" (arXiv:2305.13245).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

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
        self._cos, self._sin = _rotary_tables(config, device)
        self._norm_shape = (config.hidden,)

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        """An empty cache for this model on its device."""
        return KVCache(self.config, pages=pages, page_size=page_size, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        """Logits float32 [rows, vocab] of `batch.logit_rows`; the new K/V are in `cache` afterwards."""
        batch.check(pages=cache.pages, page_size=cache.page_size)
        config, weights = self.config, self._weights
        attend = self._backend(batch, cache, config.heads)
        positions = batch.positions.to(self.device)
        cos, sin = self._cos[positions], self._sin[positions]
        x = embedding(batch.token_ids.to(self.device), weights.embedding)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(x, layer, cos, sin)
            attended = attend(index, q, k, v)
            x = x + linear(attended.flatten(1), layer.output)
            normed = rms_norm(x, self._norm_shape, layer.mlp_norm, config.rms_eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer.down)
        rows = x[batch.logit_rows.to(self.device)]
        rows = rms_norm(rows, self._norm_shape, weights.final_norm, config.rms_eps)
        return linear(rows, weights.lm_head)

    def _project(
        self, x: torch.Tensor, layer: Layer, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated q, rotated k and v of a layer's input, each [tokens, its heads, head_dim]."""
        config = self.config
        normed = rms_norm(x, self._norm_shape, layer.attention_norm, config.rms_eps)
        qkv = linear(normed, layer.qkv).view(len(x), -1, config.head_dim)
        v = qkv[:, config.heads + config.kv_heads :]
        turning = qkv[:, : config.heads + config.kv_heads]
        first, second = turning.chunk(2, dim=-1)
        rotated = turning * cos + torch.cat((-second, first), dim=-1) * sin
        return rotated[:, : config.heads], rotated[:, config.heads :], v


def _rotary_tables(config: ModelConfig, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [context_tokens, 1, head_dim], halves as in arXiv:2104.09864.

    Computed as `transformers` does, in float32, so that logits agree to the last bits.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.arange(config.context_tokens).float()[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(device), angles.sin().to(device)


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
