"""The matrices of a decoder behind one signature, whatever their element type. Never: files, names.

The decoder computes with these alone, so that float32 and int8 are one decoder.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import embedding, linear

from appliance.model.activation import ACTIVATIONS
from appliance.model.norm import NormFunction
from appliance.model.shape import Activation


class Linear(Protocol):
    """y = x W^T + b; x and y float32, [tokens, in] and [tokens, out]."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """y, in memory of its own."""

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """`self(norm(x))`."""
        return self(norm(x))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """residual += y, in place."""
        residual += self(x)


class Gate(Protocol):
    """activation(x G^T) * (x U^T); x and the result float32, [tokens, in] and [tokens, width]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The result, in memory of its own."""

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """`self(norm(x))`."""


class Table(Linear, Protocol):
    """A token embedding; as a `Linear` it is the head of a tied model."""

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows of int64 [tokens], float32 [tokens, in], in memory of their own."""


class FloatLinear(Linear):
    """Float32 weights [out, in] and an optional bias [out], on the device of the inputs."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return linear(x, self.weight, self.bias)


class FloatTable(FloatLinear):
    """A float32 embedding [vocab, hidden]."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Table`."""
        return embedding(token_ids, self.weight)


class Bfloat16Linear(Linear):
    """Weights in bfloat16, half the bytes of float32; inputs are rounded to it, sums are float32's."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: float32 [out, in], which is not kept; `bias`: float32 [out]."""
        self.weight = weight.to(torch.bfloat16)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        y = linear(x.to(torch.bfloat16), self.weight).float()
        return y if self.bias is None else y.add_(self.bias)


class Bfloat16Table(Bfloat16Linear):
    """A bfloat16 embedding [vocab, hidden]."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Table`."""
        return embedding(token_ids, self.weight).float()


class PlainGate:
    """A `Gate` of a matrix [2 * width, in], the rows of G, then of U, that does not gate by itself."""

    __slots__ = ("_activate", "_matrix")

    def __init__(self, matrix: Linear, activation: Activation) -> None:
        self._matrix = matrix
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        return self._gated(self._matrix(x))

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """See `Gate`."""
        return self._gated(self._matrix.normed(x, norm))

    def _gated(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        return self._activate(gate).mul_(up)


class Ungated:
    """A `Gate` without G: activation(x U^T)."""

    __slots__ = ("_activate", "_matrix")

    def __init__(self, matrix: Linear, activation: Activation) -> None:
        self._matrix = matrix
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        return self._activate(self._matrix(x))

    def normed(self, x: torch.Tensor, norm: NormFunction) -> torch.Tensor:
        """See `Gate`."""
        return self._activate(self._matrix.normed(x, norm))
