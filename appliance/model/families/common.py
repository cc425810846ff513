"""What the configs of several families have in common. Never: a family's own fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from appliance.errors import ModelError
from appliance.model.fields import Fields, shown
from appliance.model.names import TensorNames
from appliance.model.rope import Rope
from appliance.model.shape import (
    Activation,
    Biases,
    Flow,
    LayerConfig,
    ModelConfig,
    Norm,
    QkvOrder,
)

LAYERS_MAX = 1024

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "relu": Activation.RELU,
}
"""`transformers`' names; three of them are one formula in different orders of the same operations."""

SLIDING, FULL = LAYER_KINDS = ("sliding_attention", "full_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """`heads` is a multiple of `kv_heads`."""

    heads: int
    kv_heads: int
    head_dim: int


def read_heads(fields: Fields, hidden: int, *, head_dim_default: int | None = None) -> Heads:
    """From `num_attention_heads`, `num_key_value_heads` and `head_dim` (else hidden / heads)."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelError(
            f"{fields.source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    head_dim = fields.optional_count("head_dim") or head_dim_default
    if head_dim is None:
        head_dim = split_width(fields, hidden, heads)
    return Heads(heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def split_width(fields: Fields, hidden: int, heads: int) -> int:
    """The width of one head when together they are as wide as the model."""
    if hidden % heads:
        raise ModelError(
            f"{fields.source}: hidden_size {hidden} is not a multiple of {heads} heads"
        )
    return hidden // heads


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    """One of `ACTIVATIONS`."""
    value = fields.get(name) or default
    if not isinstance(value, str) or value not in ACTIVATIONS:
        known = ", ".join(repr(known) for known in ACTIVATIONS)
        raise ModelError(f"{fields.source}: {name} {shown(value)} is not supported: {known}")
    return ACTIVATIONS[value]


def read_layer_kinds(fields: Fields, layers: int, default: list[str]) -> list[str]:
    """`layer_types`, one of `LAYER_KINDS` for each layer."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelError(
            f"{fields.source}: layer_types is {shown(kinds)}, not a list of {layers} layers"
        )
    for kind in kinds:
        if kind not in LAYER_KINDS:
            raise ModelError(f"{fields.source}: layer_types has {shown(kind)}, not {LAYER_KINDS}")
    return kinds


def own_layers(
    windows: Sequence[int | None], ropes: Sequence[Rope | None]
) -> tuple[LayerConfig, ...]:
    """Layers of these windows and rotations, each with keys and values of its own."""
    return tuple(
        LayerConfig(rope=rope, window=window, kv_layer=index)
        for index, (window, rope) in enumerate(zip(windows, ropes, strict=True))
    )


def special_ids(
    fields: Fields, generation: dict[str, Any], vocab_size: int
) -> tuple[int | None, tuple[int, ...]]:
    """(beginning id, end ids); the generation config's win."""
    found = []
    for name in ("bos_token_id", "eos_token_id"):
        value = generation.get(name, fields.get(name))
        values = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in values:
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise ModelError(
                    f"{fields.source}: {name} {shown(token_id)} is not an id below {vocab_size}"
                )
        found.append(tuple(values))
    bos, eos = found
    return bos[0] if bos else None, eos


def gated_decoder(
    fields: Fields,
    generation: dict[str, Any],
    *,
    family: str,
    names: TensorNames,
    context_tokens: int,
    per_layer: tuple[LayerConfig, ...],
    activation: Activation,
    biases: Biases,
    tie_default: bool,
    head_dim_default: int | None = None,
) -> ModelConfig:
    """What llama and all its relatives read alike: serial blocks with RMSNorm and a gated MLP."""
    hidden = fields.count("hidden_size")
    heads = read_heads(fields, hidden, head_dim_default=head_dim_default)
    vocab_size = fields.count("vocab_size")
    bos_id, eos_ids = special_ids(fields, generation, vocab_size)
    return ModelConfig(
        family=family,
        names=names,
        hidden=hidden,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        intermediate=fields.count("intermediate_size"),
        vocab_size=vocab_size,
        context_tokens=context_tokens,
        per_layer=per_layer,
        norm=Norm.RMS,
        norm_eps=fields.positive("rms_norm_eps", default=1e-6),
        flow=Flow.SERIAL,
        activation=activation,
        gated=True,
        qkv_order=QkvOrder.SEPARATE,
        biases=biases,
        attention_scale=heads.head_dim**-0.5,
        tie_embeddings=fields.flag("tie_word_embeddings", default=tie_default),
        bos_id=bos_id,
        eos_ids=eos_ids,
    )
