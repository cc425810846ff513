"""A layer of integers on the CPU as one call of the kernels. Never: another order of steps than `blocks`.

A decode step of a small model spends a fifth of its time between its kernels; here that is done once a
layer. The kernels are those of the steps, so no bit of the result differs.
"""

from __future__ import annotations

import torch

from appliance._core import IntLayer
from appliance.model.attention import Attend, LayerAttention
from appliance.model.blocks import Block, Layer, build_block
from appliance.model.cpu_attention import CpuAttention
from appliance.model.int_linear import IntGate, IntLinear, is_known, norm_address
from appliance.model.rotary import CpuTurn, Turn
from appliance.model.shape import Flow, ModelConfig


def build_fast_block(config: ModelConfig, layer: Layer, attention: LayerAttention) -> Block:
    """The block of `config.flow`, in one call where the kernels have it whole."""
    steps = build_block(config, layer, attention)
    kernel = _kernel(config, layer, attention)
    return steps if kernel is None else IntBlock(steps, kernel, layer, config, attention)


class IntBlock:
    """A `Block` in one call, where the step is one of `CpuAttention`; else step by step."""

    __slots__ = ("_hidden", "_kernel", "_kv_layer", "_layer", "_steps")

    def __init__(
        self,
        steps: Block,
        kernel: IntLayer,
        layer: Layer,
        config: ModelConfig,
        attention: LayerAttention,
    ) -> None:
        self._steps = steps
        self._kernel = kernel
        # Holds the weights of the norms, of which the kernel has the addresses.
        self._layer = layer
        self._hidden = config.hidden
        self._kv_layer = attention.kv_layer

    def __call__(self, x: torch.Tensor, turn: Turn | None, attend: Attend) -> None:
        """See `Block`."""
        if not isinstance(attend, CpuAttention) or not (turn is None or isinstance(turn, CpuTurn)):
            self._steps(x, turn, attend)
            return
        # The kernel gets bare addresses: what it assumes about memory is proved here.
        assert x.shape == (attend.batch.tokens, self._hidden)
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        k_cache, v_cache, scales = attend.addresses(self._kv_layer)
        self._kernel.run(
            x.data_ptr(),
            k_cache,
            v_cache,
            None if turn is None else turn.arguments,
            scales=scales,
            slots=attend.batch.slots,
            **attend.pages,
        )


def _kernel(config: ModelConfig, layer: Layer, attention: LayerAttention) -> IntLayer | None:
    """The layer as the kernels have it; None for one that they have not."""
    norm, mlp_norm = layer.attention_norm, layer.mlp_norm
    qkv, output, gate, down = layer.qkv, layer.output, layer.up, layer.down
    if (
        config.flow is not Flow.SERIAL
        or layer.head_norm is not None
        or not attention.stores
        or attention.softcap is not None
        or mlp_norm is None
        or not is_known(norm, config.hidden)
        or not is_known(mlp_norm, config.hidden)
        or not isinstance(qkv, IntLinear)
        or not isinstance(output, IntLinear)
        or not isinstance(gate, IntGate)
        or not isinstance(down, IntLinear)
    ):
        return None
    return IntLayer(
        qkv.matrix,
        output.matrix,
        gate.matrix,
        down.matrix,
        norm=norm_address(norm),
        mlp_norm=norm_address(mlp_norm),
        activation=gate.activation,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        scale=attention.scale,
        window=attention.window,
    )
