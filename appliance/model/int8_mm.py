"""A matrix in int8 for torch's own integer product, on CUDA and on the CPU. Never: files, names.

y = x W^T + b with weights quantised once per output channel and inputs per token as they come
("LLM.int8()", arXiv:2208.07339, section 2): the products are exact in int32, then scaled.
"""

from __future__ import annotations

import torch

INT8_MAX = 127
ROWS_MIN = 17
"""`torch._int_mm` on CUDA asks for more than 16 rows; fewer are filled up with zeros."""

SIZE_MULTIPLE = 8
"""`torch._int_mm` on CUDA asks that both sides of the matrix are multiples of it."""


class TorchInt8Linear:
    """A `Linear` over int8 weights [out, in], float32 scales [out] and an optional float32 bias."""

    __slots__ = ("bias", "scales", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: float [out, in], both multiples of `SIZE_MULTIPLE`; it is not kept."""
        assert weight.shape[0] % SIZE_MULTIPLE == weight.shape[1] % SIZE_MULTIPLE == 0
        self.weight, self.scales = quantise_rows(weight)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [tokens, in] -> float32 [tokens, out]."""
        tokens = len(x)
        numbers, scales = quantise_rows(x)
        if tokens < ROWS_MIN:
            numbers = torch.nn.functional.pad(numbers, (0, 0, 0, ROWS_MIN - tokens))
        products = torch._int_mm(numbers, self.weight.t())[:tokens]
        y = products.float() * scales[:, None] * self.scales
        return y if self.bias is None else y + self.bias

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """residual += y, in place."""
        residual += self(x)


def quantise_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [rows, width] and float32 scales [rows]: number * scale is the value, to half a scale.

    The scale is the largest magnitude / 127; a row of zeros has the scale 0.
    """
    values = rows.float()
    scales = values.abs().amax(-1) / INT8_MAX
    numbers = (values / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_()
    return numbers.clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scales
