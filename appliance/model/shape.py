"""The shape of a model as data: what the decoder, the cache and the loaders are built from. Never: files.

One decoder serves all families; where they differ, a field here says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from appliance.model.names import TensorNames
from appliance.model.rope import Rope


class Norm(Enum):
    """RMS (arXiv:1910.07467); RMS_OFFSET: the stored weight is the factor less one; LAYER: with bias."""

    RMS = "rms"
    RMS_OFFSET = "rms_offset"
    LAYER = "layer"


class Activation(Enum):
    """Between the two halves of an MLP. GELU_TANH: the tanh approximation."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


class Flow(Enum):
    """How attention and MLP of a layer are joined.

    SERIAL: x += attention(norm(x)); x += mlp(norm(x)).
    SANDWICH: x += norm(attention(norm(x))); x += norm(mlp(norm(x))).
    PARALLEL: x += attention(norm(x)) + mlp(norm(x)), of one norm or of two.
    """

    SERIAL = "serial"
    SANDWICH = "sandwich"
    PARALLEL = "parallel"


class QkvOrder(Enum):
    """Rows of a checkpoint's query, key and value matrices.

    SEPARATE: three tensors. SPLIT: one, with all of q, then k, then v. GROUPED: one, and in it for each
    K/V head its queries, its key, its value.
    """

    SEPARATE = "separate"
    SPLIT = "split"
    GROUPED = "grouped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What may differ from layer to layer.

    rope: None for layers that do not rotate. window: how many positions a query sees, its own among
    them; None for all. kv_layer: the layer whose keys and values it reads; its own index when it
    computes them.
    """

    rope: Rope | None
    window: int | None
    kv_layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which matrices have one."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers a decoder is built from.

    `heads` is a multiple of `kv_heads` (1 = multi-query); `head_dim` is even where a layer rotates.
    `per_layer` has one entry a layer. `attention_scale` multiplies the products of queries and keys,
    `embedding_scale` the embeddings; a soft-cap c makes x into c * tanh(x / c). `learned_positions`:
    a table of `context_tokens` positions is added to the embeddings. `eos_ids` are the tokens that end
    a reply. Defaults are for what few families have.
    """

    family: str
    names: TensorNames
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_tokens: int
    per_layer: tuple[LayerConfig, ...]
    norm: Norm
    norm_eps: float
    flow: Flow
    activation: Activation
    gated: bool
    qkv_order: QkvOrder
    biases: Biases
    attention_scale: float
    tie_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    learned_positions: bool = False

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.per_layer)

    @property
    def kv_layers(self) -> int:
        """How many layers have keys and values of their own."""
        return sum(layer.kv_layer == index for index, layer in enumerate(self.per_layer))
