"""The matrices of a decoder behind one signature, whatever their element type. Never: files, names.

The decoder computes with these alone, so that float32 and int8 are one decoder.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import embedding, linear


class Linear(Protocol):
    """y = x W^T + b; x and y float32, [tokens, in] and [tokens, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """y, in memory of its own."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """residual += y, in place."""


class Table(Linear, Protocol):
    """A token embedding; as a `Linear` it is the head of a tied model."""

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The rows of int64 [tokens], float32 [tokens, in], in memory of their own."""


class FloatLinear:
    """Float32 weights [out, in] and an optional bias [out], on the device of the inputs."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """See `Linear`."""
        residual += linear(x, self.weight, self.bias)


class FloatTable(FloatLinear):
    """A float32 embedding [vocab, hidden]."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Table`."""
        return embedding(token_ids, self.weight)


class Bfloat16Linear:
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

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """See `Linear`."""
        residual += self(x)


class Bfloat16Table(Bfloat16Linear):
    """A bfloat16 embedding [vocab, hidden]."""

    __slots__ = ()

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Table`."""
        return embedding(token_ids, self.weight).float()
