"""A matrix in int8 for torch's own integer product. Never: files, names.

y = x W^T + b with weights quantised once per output and inputs per token as they come ("LLM.int8()",
arXiv:2208.07339, section 2): the products are exact in int32, then scaled.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from appliance.model.kv_cache import quantise
from appliance.model.linear import Linear

ROWS_MIN = 17
"""`torch._int_mm` on CUDA asks for more than 16 rows; fewer are filled up with zeros."""

SIZE_MULTIPLE = 8
"""`torch._int_mm` on CUDA asks that both sides of the matrix are multiples of it."""


class TorchInt8Linear(Linear):
    """A `Linear` over int8 weights [out, in], float32 scales [out] and an optional float32 bias.

    Sides that are no multiples of `SIZE_MULTIPLE` are filled up with zeros.
    """

    __slots__ = ("bias", "outputs", "scales", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: float32 [out, in]; it is not kept."""
        self.outputs, inputs = weight.shape
        numbers, self.scales = quantise(weight)
        self.weight = pad(numbers, (0, -inputs % SIZE_MULTIPLE, 0, -self.outputs % SIZE_MULTIPLE))
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        tokens, inputs = x.shape
        numbers, scales = quantise(x)
        numbers = pad(numbers, (0, self.weight.shape[1] - inputs, 0, max(0, ROWS_MIN - tokens)))
        products = torch._int_mm(numbers, self.weight.t())[:tokens, : self.outputs]
        y = products.float().mul_(scales[:, None]).mul_(self.scales)
        return y if self.bias is None else y.add_(self.bias)
