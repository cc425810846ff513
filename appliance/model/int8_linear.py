"""Matrices of a decoder in int8 on the CPU. Never: their place in a model, files, names."""

from __future__ import annotations

from typing import Literal

import torch

from appliance._core import Int8Matrix
from appliance.model.stack import Stack

BLOCK_VALUES = 1 << 20
"""Values that are quantised at once: 4 MiB of float32."""

Activation = Literal["silu", "gelu_tanh", "gelu_erf"]


class Int8Linear:
    """A `Linear` of int8 weights with a scale for each output; activations keep 9 bits or more.

    See `_core.Int8Matrix` for the arithmetic. Inputs are float32 on the CPU.
    """

    __slots__ = ("_matrix",)

    def __init__(
        self, weight: Stack, bias: torch.Tensor | None = None, *, gated: bool = False
    ) -> None:
        """Quantise a matrix [outputs, inputs]; `bias`: float32 [outputs].

        A few rows at a time, so that the float32 matrix is never whole in memory. With `gated` the rows
        are those of the gate, then those of what it is multiplied with.
        """
        (inputs,), outputs = weight.row, weight.rows
        matrix = Int8Matrix(outputs, inputs, gated=gated)
        for block in weight.blocks(max(1, BLOCK_VALUES // inputs)):
            rows = _checked(block, inputs)
            matrix.push_rows(rows.data_ptr(), len(rows))
        if bias is not None:
            assert bias.shape == (outputs,)
            values = bias.float().contiguous()
            matrix.set_bias(values.data_ptr())
        self._matrix = matrix

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self._matrix.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: float32 [tokens, inputs] -> [tokens, outputs]."""
        x = _checked(x, self._matrix.inputs)
        out = torch.empty(len(x), self._matrix.outputs)
        self._matrix.linear(out.data_ptr(), x.data_ptr(), len(x))
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """residual += x W^T + b, in place; `residual` is contiguous."""
        x = _checked(x, self._matrix.inputs)
        _check_place(residual, len(x), self._matrix.outputs)
        self._matrix.add_linear(residual.data_ptr(), x.data_ptr(), len(x))

    def gate(
        self,
        x: torch.Tensor,
        activation: Activation,
        norm: tuple[torch.Tensor, float] | None = None,
    ) -> torch.Tensor:
        """activation(gate) * up of a `gated` matrix, float32 [tokens, outputs / 2].

        `norm`: weight, float32 [inputs], and epsilon of an RMSNorm that x goes through first.
        """
        x = _checked(x, self._matrix.inputs)
        out = torch.empty(len(x), self._matrix.outputs // 2)
        self._matrix.gate(
            out.data_ptr(), x.data_ptr(), len(x), activation=activation, norm=self._norm(norm)
        )
        return out

    def normed(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """`self(RMSNorm(x))` in one call."""
        x = _checked(x, self._matrix.inputs)
        out = torch.empty(len(x), self._matrix.outputs)
        norm = self._norm((weight, epsilon))
        self._matrix.linear(out.data_ptr(), x.data_ptr(), len(x), norm=norm)
        return out

    def _norm(self, norm: tuple[torch.Tensor, float] | None) -> tuple[int, float] | None:
        if norm is None:
            return None
        weight, epsilon = norm
        assert weight.shape == (self._matrix.inputs,)
        assert weight.dtype == torch.float32
        assert weight.is_contiguous()
        return weight.data_ptr(), epsilon


class Int8Table(Int8Linear):
    """An embedding table that is also the head of a tied model."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows of int64 [tokens], float32 [tokens, inputs]. Raises ValueError for an unknown id."""
        assert token_ids.dtype == torch.int64
        assert token_ids.device.type == "cpu"
        ids = token_ids.contiguous()
        out = torch.empty(ids.numel(), self._matrix.inputs)
        self._matrix.rows(out.data_ptr(), ids.data_ptr(), ids.numel())
        return out


def _checked(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """The kernel gets bare addresses: what it assumes about memory is proved here."""
    assert tensor.ndim == 2
    assert tensor.shape[1] == width
    assert tensor.dtype == torch.float32
    assert tensor.device.type == "cpu"
    return tensor.contiguous()


def _check_place(tensor: torch.Tensor, tokens: int, width: int) -> None:
    assert tensor.shape == (tokens, width)
    assert tensor.dtype == torch.float32
    assert tensor.device.type == "cpu"
    assert tensor.is_contiguous()
