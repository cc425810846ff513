"""The decoder: token ids and pages in, logits out. Never: sampling, scheduling, page accounting.

One for all families: what differs between them is in the shape (`ModelConfig`), and decided when the
decoder is built.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import embedding

from appliance.errors import ModelError
from appliance.model.attention import Attend, Backend, LayerAttention
from appliance.model.backends import choose_backend
from appliance.model.batch import StepBatch
from appliance.model.config import ModelConfig, read_config
from appliance.model.cuda_attention import attend_in_place, reads_in_place
from appliance.model.decode_graphs import Capture, DecodeGraphs, DecodeStep
from appliance.model.files import check_model
from appliance.model.int_block import build_fast_block
from appliance.model.kv_cache import KVCache, KVSetting, kv_type
from appliance.model.linear import FloatTable
from appliance.model.manifest import fingerprint, form_fingerprint
from appliance.model.rotary import rotary_table, turn_by
from appliance.model.weight_form import WeightDtype, choose_form
from appliance.model.weights import Weights, load_weights


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
        softcap = config.attention_softcap is not None
        self.backend = backend or choose_backend(device, softcap=softcap)
        # The rotations in use, each once; None for layers that do not rotate.
        ropes = list(dict.fromkeys(layer.rope for layer in config.per_layer))
        self._tables = [
            None
            if rope is None
            else rotary_table(
                rope,
                head_dim=config.head_dim,
                context_tokens=config.context_tokens,
                device=device,
            )
            for rope in ropes
        ]
        self.attentions = _attentions(config)
        self._blocks = [
            (build_fast_block(config, weights.layers[index], attention), ropes.index(layer.rope))
            for index, (attention, layer) in enumerate(
                zip(self.attentions, config.per_layer, strict=True)
            )
        ]
        self._graphs: DecodeGraphs | None = None

    @property
    def is_rounded(self) -> bool:
        """Whether products are of numbers in less than float32: weights in bfloat16 or int8."""
        return not isinstance(self._weights.embedding, FloatTable)

    def new_cache(self, pages: int, page_size: int, dtype: torch.dtype = torch.float32) -> KVCache:
        """An empty cache for this model on its device; `dtype`: of its elements."""
        return KVCache(
            self.config, pages=pages, page_size=page_size, device=self.device, dtype=dtype
        )

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        """Logits float32 [rows, vocab] of `batch.logit_rows`; the new K/V are in `cache` afterwards."""
        batch.check(pages=cache.pages, page_size=cache.page_size)
        cache.join_copies()
        if self._graphs is not None and self._graphs.takes(batch, cache):
            return self._graphs.run(batch)
        attend = self.backend(batch, cache, self.config.heads)
        positions = batch.positions.to(self.device)
        x = self._through_layers(batch.token_ids.to(self.device), positions, attend)
        return self._logits(x[batch.logit_rows.to(self.device)])

    @torch.inference_mode()
    def capture_decodes(
        self, cache: KVCache, capture: Capture, *, sequences_max: int, context_tokens_max: int
    ) -> None:
        """Run steps of decodes alone over this cache as captured from now on, up to so many of up to so
        long a context. Writes row 0 of page 0, so nothing may be cached yet.

        Does nothing where a layer gathers pages: what that copies depends on the batch. Raises
        RuntimeError when a capture fails.
        """
        heads = self.config.heads
        if not all(reads_in_place(layer, cache, heads) for layer in self.attentions):
            return

        def compute(step: DecodeStep) -> torch.Tensor:
            attend = attend_in_place(step.paged, cache)
            return self._logits(self._through_layers(step.token_ids, step.positions, attend))

        self._graphs = DecodeGraphs(
            compute,
            capture,
            cache=cache,
            sequences_max=sequences_max,
            context_tokens_max=context_tokens_max,
        )

    def _through_layers(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """The last layer's output, float32 [tokens, hidden]; inputs are on the device."""
        turns = [None if table is None else turn_by(table, positions) for table in self._tables]
        x = self._embed(token_ids, positions)
        for block, rope in self._blocks:
            block(x, turns[rope], attend)
        return x

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Float32 [rows, vocab] of float32 [rows, hidden]."""
        logits = self._weights.lm_head.normed(rows, self._weights.final_norm)
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The input of the first layer, float32 [tokens, hidden]."""
        x = self._weights.embedding.rows(token_ids)
        if self.config.embedding_scale != 1.0:
            x *= self.config.embedding_scale
        if self._weights.positions is not None:
            x += embedding(positions, self._weights.positions)
        return x


def _attentions(config: ModelConfig) -> list[LayerAttention]:
    """Each layer's attention, which knows the layer of the cache that it reads."""
    cache_layers: dict[int, int] = {}
    attentions = []
    for index, layer in enumerate(config.per_layer):
        stores = layer.kv_layer == index
        if stores:
            cache_layers[index] = len(cache_layers)
        attention = LayerAttention(
            kv_layer=cache_layers[layer.kv_layer],
            stores=stores,
            scale=config.attention_scale,
            window=layer.window,
            softcap=config.attention_softcap,
        )
        attentions.append(attention)
    return attentions


def load_model(
    directory: Path,
    device: str,
    threads: int | None,
    *,
    weight_dtype: WeightDtype = "float32",
    kv_dtype: KVSetting = "auto",
) -> Decoder:
    """Check, read and place a model. `device`: "cpu", "cuda", "cuda:N", or "auto".

    `threads`: CPU threads for torch, None for its default. `kv_dtype`: of the cache it will have; the
    fingerprint names it beside the form of the weights. Raises ModelError.
    """
    check_model(directory)
    config = read_config(directory)
    target = _device(device)
    form = choose_form(weight_dtype, target)
    if threads is not None:
        torch.set_num_threads(threads)
    weights = load_weights(directory, config, target, form)
    elements = str(kv_type(kv_dtype, on_gpu=target.type == "cuda")).removeprefix("torch.")
    name = form_fingerprint(
        fingerprint(directory), f"weights {form.name}, keys and values {elements}, no adapter"
    )
    return Decoder(config, weights, fingerprint=name, device=target)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is not known: use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not supported: use auto, cpu or cuda")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ModelError(f"device {name!r} asked for, but this machine has no usable GPU")
    number, count = device.index or 0, torch.cuda.device_count()
    if number >= count:
        raise ModelError(f"device {name!r} asked for, but this machine has {count} GPUs, from 0 on")
    # Streams and captures that name no device are of this one.
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
