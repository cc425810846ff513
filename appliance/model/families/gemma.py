"""Gemma 1 to 3: scaled embeddings, norms stored as w - 1, GeGLU; from 2 on windows and more norms.

As in "Gemma" (arXiv:2403.08295), "Gemma 2" (arXiv:2408.00118) and "Gemma 3" (arXiv:2503.19786).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from appliance.errors import ModelError
from appliance.model.families.common import (
    FULL,
    LAYER_KINDS,
    LAYERS_MAX,
    SLIDING,
    gated_decoder,
    own_layers,
    read_activation,
    read_layer_kinds,
)
from appliance.model.families.llama import LAYOUT
from appliance.model.fields import Fields, shown
from appliance.model.names import TensorNames
from appliance.model.rope import Rope, parse_rope, reach, read_rope
from appliance.model.shape import (
    Activation,
    Biases,
    Flow,
    LayerConfig,
    ModelConfig,
    Norm,
)

HEAD_DIM_DEFAULT = 256
WINDOW_DEFAULT = 4096
LOCAL_THETA_DEFAULT = 10_000.0
GLOBAL_THETA_DEFAULT = 1_000_000.0

SANDWICH_LAYOUT = replace(
    LAYOUT,
    post_attention_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)
GEMMA3_LAYOUT = replace(SANDWICH_LAYOUT, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm")

WRAPPER_LAYOUT = replace(
    GEMMA3_LAYOUT,
    # As published, and as `transformers` 5 writes it.
    renamed=(
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
    ),
    ignored_prefixes=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)
"""The language model inside `Gemma3ForConditionalGeneration`; the parts for images are left alone."""


def parse_gemma(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`GemmaForCausalLM`. Its configs say `hidden_act: gelu` and mean the tanh approximation."""
    activation = read_activation(fields, "hidden_act", "gelu_pytorch_tanh")
    if activation is Activation.GELU:
        activation = Activation.GELU_TANH
    context_tokens = _context(fields, 8192)
    rope = read_rope(fields, context_tokens=context_tokens)
    layers = fields.count("num_hidden_layers", limit=LAYERS_MAX)
    return _common(
        fields,
        generation,
        family="gemma",
        names=LAYOUT,
        activation=activation,
        context_tokens=reach(rope, context_tokens),
        per_layer=own_layers([None] * layers, [rope] * layers),
    )


def parse_gemma2(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`Gemma2ForCausalLM`: every other layer has a window; attention and logits are soft-capped."""
    context_tokens = _context(fields, 8192)
    rope = read_rope(fields, context_tokens=context_tokens)
    kinds = _kinds(fields, pattern=2)
    config = _sandwich(
        fields,
        generation,
        family="gemma2",
        names=SANDWICH_LAYOUT,
        context_tokens=reach(rope, context_tokens),
        per_layer=own_layers(_windows(fields, kinds), [rope] * len(kinds)),
    )
    return replace(
        config,
        attention_softcap=_cap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(fields, "final_logit_softcapping", 30.0),
    )


def parse_gemma3(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """`Gemma3ForCausalLM`: of six layers five have a window and a theta of their own."""
    # The family has a field for it that its decoder does not read.
    fields.refuse("attn_logit_softcapping")
    context_tokens = _context(fields, 131_072)
    kinds = _kinds(fields, pattern=_pattern(fields))
    ropes = _gemma3_ropes(fields, context_tokens)
    config = _sandwich(
        fields,
        generation,
        family="gemma3",
        names=GEMMA3_LAYOUT,
        context_tokens=reach(ropes[FULL], context_tokens),
        per_layer=own_layers(_windows(fields, kinds), [ropes[kind] for kind in kinds]),
    )
    return replace(config, logit_softcap=_cap(fields, "final_logit_softcapping", None))


def parse_gemma3_wrapper(fields: Fields, generation: dict[str, Any]) -> ModelConfig:
    """The language model of `Gemma3ForConditionalGeneration`, for text alone."""
    text = fields.part("text_config")
    if text is None:
        raise ModelError(f"{fields.source}: text_config is missing")
    if text.get("model_type") not in (None, "gemma3_text"):
        raise ModelError(
            f"{fields.source}: text_config of model_type {shown(text.get('model_type'))} is not "
            "supported: 'gemma3_text'"
        )
    text = text.over(fields, "bos_token_id", "eos_token_id", "tie_word_embeddings")
    return replace(parse_gemma3(text, generation), names=WRAPPER_LAYOUT)


def _common(
    fields: Fields,
    generation: dict[str, Any],
    *,
    family: str,
    names: TensorNames,
    activation: Activation,
    context_tokens: int,
    per_layer: tuple[LayerConfig, ...],
) -> ModelConfig:
    """What the three share; context and layers they read in their own ways."""
    fields.refuse("use_bidirectional_attention", "num_kv_shared_layers")
    bias = fields.flag("attention_bias", default=False)
    config = gated_decoder(
        fields,
        generation,
        family=family,
        names=names,
        context_tokens=context_tokens,
        per_layer=per_layer,
        activation=activation,
        biases=Biases(qkv=bias, output=bias),
        tie_default=True,
        head_dim_default=HEAD_DIM_DEFAULT,
    )
    return replace(config, norm=Norm.RMS_OFFSET, embedding_scale=config.hidden**0.5)


def _sandwich(
    fields: Fields,
    generation: dict[str, Any],
    *,
    family: str,
    names: TensorNames,
    context_tokens: int,
    per_layer: tuple[LayerConfig, ...],
) -> ModelConfig:
    config = _common(
        fields,
        generation,
        family=family,
        names=names,
        activation=read_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        context_tokens=context_tokens,
        per_layer=per_layer,
    )
    scalar = fields.positive("query_pre_attn_scalar", default=256)
    return replace(config, flow=Flow.SANDWICH, attention_scale=scalar**-0.5)


def _context(fields: Fields, default: int) -> int:
    return fields.count("max_position_embeddings", default=default)


def _cap(fields: Fields, name: str, default: float | None) -> float | None:
    """An absent cap is the family's default; only null is none."""
    return fields.optional_positive(name) if fields.has(name) else default


def _pattern(fields: Fields) -> int:
    own = "sliding_window_pattern"
    return fields.count(own if fields.get(own) is not None else f"_{own}", default=6)


def _kinds(fields: Fields, *, pattern: int) -> list[str]:
    """The last of each `pattern` layers sees everything, unless `layer_types` says otherwise."""
    layers = fields.count("num_hidden_layers", limit=LAYERS_MAX)
    default = [SLIDING if (index + 1) % pattern else FULL for index in range(layers)]
    return read_layer_kinds(fields, layers, default)


def _windows(fields: Fields, kinds: list[str]) -> list[int | None]:
    window = fields.count("sliding_window", default=WINDOW_DEFAULT)
    return [window if kind == SLIDING else None for kind in kinds]


def _gemma3_ropes(fields: Fields, context_tokens: int) -> dict[str, Rope]:
    """The rotation of each kind of layer; `rope_scaling` of older configs is for the full ones alone."""
    thetas = {
        SLIDING: fields.positive("rope_local_base_freq", default=LOCAL_THETA_DEFAULT),
        FULL: fields.positive("rope_theta", default=GLOBAL_THETA_DEFAULT),
    }
    parts: dict[str, Fields | None] = {FULL: fields.part("rope_scaling")}
    nested = fields.part("rope_parameters")
    if nested is not None:
        for name in nested.names() - set(LAYER_KINDS):
            raise ModelError(
                f"{fields.source}: rope_parameters has {name}; this family has one set for "
                f"{SLIDING} and one for {FULL}"
            )
        parts = {SLIDING: nested.part(SLIDING), FULL: nested.part(FULL) or parts[FULL]}
    ropes = {}
    for kind, theta in thetas.items():
        part = parts.get(kind)
        ropes[kind] = Rope(theta=theta, scaling=None)
        if part is not None:
            ropes[kind] = parse_rope(
                part, theta=theta, original_tokens=None, context_tokens=context_tokens
            )
    return ropes
