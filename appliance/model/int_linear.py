"""Matrices of a decoder as integers on the CPU. Never: their place in a model, files, names."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeGuard

import torch

from appliance._core import IntMatrix
from appliance.model.linear import Gate, PlainGate
from appliance.model.norm import NormFunction, RmsNorm
from appliance.model.shape import Activation
from appliance.model.stack import Stack

BLOCK_VALUES = 1 << 20
"""Values that are quantised at once: 4 MiB of float32."""

GateActivation: TypeAlias = Literal["silu", "gelu_tanh", "gelu_erf"]

GATES: dict[Activation, GateActivation] = {
    Activation.SILU: "silu",
    Activation.GELU: "gelu_erf",
    Activation.GELU_TANH: "gelu_tanh",
}
"""The activations that a product of `IntMatrix` can end with."""


Bits: TypeAlias = Literal[8, 12]


class IntLinear:
    """A `Linear` of integers with a scale for each output; activations keep 9 bits or more.

    See `_core.IntMatrix` for the arithmetic. Inputs are float32 on the CPU.
    """

    __slots__ = ("matrix",)

    def __init__(self, weight: Stack, bias: torch.Tensor | None = None, *, bits: Bits) -> None:
        """Quantise a matrix [outputs, inputs]; `bias`: float32 [outputs]."""
        self.matrix = _quantised(weight, bias, bits=bits, gated=False)

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.matrix.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        x = _checked(x, self.matrix.inputs)
        out = torch.empty(x.shape[0], self.matrix.outputs)
        self.matrix.linear(out.data_ptr(), x.data_ptr(), x.shape[0])
        return out

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """See `Linear`; in one call where the norm is one the kernel knows."""
        if not is_known(norm, self.matrix.inputs):
            return self(norm(x))
        x = _checked(x, self.matrix.inputs)
        out = torch.empty(x.shape[0], self.matrix.outputs)
        self.matrix.linear(out.data_ptr(), x.data_ptr(), x.shape[0], norm=norm_address(norm))
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """See `Linear`; `residual` is contiguous."""
        x = _checked(x, self.matrix.inputs)
        _check_place(residual, x.shape[0], self.matrix.outputs)
        self.matrix.add_linear(residual.data_ptr(), x.data_ptr(), x.shape[0])


class IntGate:
    """A `Gate` in one call: the product, the activation and what it is multiplied with."""

    __slots__ = ("activation", "matrix")

    def __init__(
        self, weight: Stack, bias: torch.Tensor | None, activation: GateActivation, *, bits: Bits
    ) -> None:
        """Quantise a matrix: the rows of G, then of U."""
        self.matrix = _quantised(weight, bias, bits=bits, gated=True)
        self.activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        return self._gated(x, None)

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """See `Gate`; in one call where the norm is one the kernel knows."""
        if not is_known(norm, self.matrix.inputs):
            return self._gated(norm(x), None)
        return self._gated(x, norm_address(norm))

    def _gated(self, x: torch.Tensor, norm: tuple[int, float] | None) -> torch.Tensor:
        x = _checked(x, self.matrix.inputs)
        out = torch.empty(x.shape[0], self.matrix.outputs // 2)
        self.matrix.gate(
            out.data_ptr(), x.data_ptr(), x.shape[0], activation=self.activation, norm=norm
        )
        return out


def int_gate(
    weight: Stack, bias: torch.Tensor | None, activation: Activation, *, bits: Bits
) -> Gate:
    """A `Gate` of integers: the rows of G, then of U."""
    if activation in GATES:
        return IntGate(weight, bias, GATES[activation], bits=bits)
    return PlainGate(IntLinear(weight, bias, bits=bits), activation)


class IntTable(IntLinear):
    """An embedding table that is also the head of a tied model."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows of int64 [tokens], float32 [tokens, inputs]. Raises ValueError for an unknown id."""
        assert token_ids.dtype == torch.int64
        assert token_ids.device.type == "cpu"
        ids = token_ids.contiguous()
        out = torch.empty(ids.numel(), self.matrix.inputs)
        self.matrix.rows(out.data_ptr(), ids.data_ptr(), ids.numel())
        return out


def _quantised(weight: Stack, bias: torch.Tensor | None, *, bits: Bits, gated: bool) -> IntMatrix:
    """A few rows at a time, so that the float32 matrix is never whole in memory."""
    (inputs,), outputs = weight.row, weight.rows
    matrix = IntMatrix(outputs, inputs, bits=bits, gated=gated)
    for block in weight.blocks(max(1, BLOCK_VALUES // inputs)):
        rows = _checked(block, inputs)
        matrix.push_rows(rows.data_ptr(), len(rows))
    if bias is not None:
        assert bias.shape == (outputs,)
        values = bias.float().contiguous()
        matrix.set_bias(values.data_ptr())
    return matrix


def is_known(norm: NormFunction, inputs: int) -> TypeGuard[RmsNorm]:
    """Whether the kernels compute it: an RMSNorm of a whole row."""
    return isinstance(norm, RmsNorm) and norm.weight.shape == (inputs,)


def norm_address(norm: RmsNorm) -> tuple[int, float]:
    """The kernel's form of a norm; its weight is contiguous float32 by `RmsNorm`."""
    return norm.weight.data_ptr(), norm.epsilon


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
