"""Names and shapes of a checkpoint's tensors, by role, for any family. Never: their data.

A role is a field of `TensorNames` with `.weight` or `.bias`.
"""

from __future__ import annotations

from appliance.model.shape import LayerConfig, ModelConfig, Norm, QkvOrder

Shape = tuple[int, ...]


def layer_shapes(config: ModelConfig, layer: LayerConfig, index: int) -> dict[str, Shape]:
    """Role -> shape of the tensors of one layer, in the order a forward pass reads them."""
    names, biases, hidden = config.names, config.biases, config.hidden
    shapes: dict[str, Shape] = {}

    def matrix(role: str, rows: int, width: int, *, bias: bool) -> None:
        shapes[f"{role}.weight"] = (rows, width)
        if bias:
            shapes[f"{role}.bias"] = (rows,)

    def norm(role: str, name: str | None) -> None:
        if name is not None:
            shapes.update(_norm_shapes(config, role))

    queries = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim if layer.kv_layer == index else 0
    norm("attention_norm", names.attention_norm)
    if config.qkv_order is QkvOrder.SEPARATE:
        matrix("q", queries, hidden, bias=biases.qkv)
        if keys:
            matrix("k", keys, hidden, bias=biases.qkv)
            matrix("v", keys, hidden, bias=biases.qkv)
    else:
        assert keys, "a fused matrix has its own keys and values"
        matrix("qkv", queries + 2 * keys, hidden, bias=biases.qkv)
    if names.q_norm is not None:
        shapes["q_norm.weight"] = (config.head_dim,)
    if names.k_norm is not None and keys:
        shapes["k_norm.weight"] = (config.head_dim,)
    matrix("output", hidden, queries, bias=biases.output)
    norm("post_attention_norm", names.post_attention_norm)
    norm("mlp_norm", names.mlp_norm)
    if config.gated:
        matrix("gate", config.intermediate, hidden, bias=biases.mlp)
    matrix("up", config.intermediate, hidden, bias=biases.mlp)
    matrix("down", hidden, config.intermediate, bias=biases.mlp)
    norm("post_mlp_norm", names.post_mlp_norm)
    return shapes


def outer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Role -> shape of the tensors outside the layers."""
    shapes: dict[str, Shape] = {"embedding.weight": (config.vocab_size, config.hidden)}
    if config.learned_positions:
        shapes["positions.weight"] = (config.context_tokens, config.hidden)
    shapes |= _norm_shapes(config, "final_norm")
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden)
    return shapes


def _norm_shapes(config: ModelConfig, role: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{role}.weight": (config.hidden,)}
    if config.norm is Norm.LAYER:
        shapes[f"{role}.bias"] = (config.hidden,)
    return shapes


def tensor_name(config: ModelConfig, role: str, layer: int | None = None) -> str:
    """Full name of the tensor of a role, in one layer or outside all."""
    module, _, kind = role.partition(".")
    name: str = getattr(config.names, module)
    prefix = "" if layer is None else config.names.layer.format(layer)
    return f"{prefix}{name}.{kind}"


def tensor_roles(config: ModelConfig) -> list[tuple[str, int | None, Shape]]:
    """(role, layer or None, shape) of every tensor the model needs."""
    return [
        *((role, None, shape) for role, shape in outer_shapes(config).items()),
        *(
            (role, index, shape)
            for index, layer in enumerate(config.per_layer)
            for role, shape in layer_shapes(config, layer, index).items()
        ),
    ]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor the model needs."""
    return {tensor_name(config, role, layer): shape for role, layer, shape in tensor_roles(config)}
