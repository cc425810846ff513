"""The norms of a decoder, with their weights. Never: files, where they stand in a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.linalg import vector_norm
from torch.nn.functional import layer_norm

from appliance import _core

NormFunction: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""float32 [..., width] -> the same shape, in memory of its own."""


class RmsNorm:
    """RMSNorm (arXiv:1910.07467) over the last axis.

    `weight`: contiguous float32 [width], or [heads, width] for one norm a head.

    In one call or four operations; torch's own takes a dozen on the CPU, more than a small decode step
    spends in its matrices.
    """

    __slots__ = ("_epsilon", "_share", "epsilon", "weight")

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        assert weight.dtype == torch.float32
        assert weight.is_contiguous()
        self.weight = weight
        self.epsilon = epsilon
        self._share = 1 / weight.shape[-1]
        self._epsilon = torch.full((1, 1), epsilon, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `NormFunction`."""
        if x.device.type == "cpu" and self.weight.ndim == 1:
            return self._on_cpu(x)
        length = vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return (x * scale).mul_(self.weight)

    def _on_cpu(self, x: torch.Tensor) -> torch.Tensor:
        # The kernel gets bare addresses: what it assumes about memory is proved here.
        assert x.dtype == torch.float32
        assert x.shape[-1:] == self.weight.shape
        x, out = x.contiguous(), torch.empty(x.shape)
        _core.rms_norm(
            out.data_ptr(),
            x.data_ptr(),
            self.weight.data_ptr(),
            tokens=x.numel() // x.shape[-1],
            hidden=x.shape[-1],
            epsilon=self.epsilon,
        )
        return out


class LayerNorm:
    """LayerNorm (arXiv:1607.06450) over the last axis; `weight`, `bias`: float32 [width]."""

    __slots__ = ("_bias", "_epsilon", "_shape", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> None:
        self._weight, self._bias, self._epsilon = weight, bias, epsilon
        self._shape = tuple(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `NormFunction`."""
        return layer_norm(x, self._shape, self._weight, self._bias, self._epsilon)
