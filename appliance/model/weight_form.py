"""The forms of weights in memory, and which one a device gets. Never: files, a model's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch

from appliance.errors import ModelError
from appliance.model.int8_mm import TorchInt8Linear
from appliance.model.int_linear import Bits, IntLinear, IntTable, int_gate
from appliance.model.linear import (
    Bfloat16Linear,
    Bfloat16Table,
    FloatLinear,
    FloatTable,
    Gate,
    Linear,
    PlainGate,
    Table,
)
from appliance.model.shape import Activation
from appliance.model.stack import Stack

WeightDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "int12", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """How a decoder's matrices are made. A bias is float32 [out] and becomes the callee's own.

    name: what the model's fingerprint says of it; bits: of a weight; make_linear: from (weight
    [out, in], bias or None); make_gate: from the rows of G, then of U; make_table: from [vocab, hidden].
    """

    name: str
    bits: int
    make_linear: Callable[[Stack, torch.Tensor | None], Linear]
    make_gate: Callable[[Stack, torch.Tensor | None, Activation], Gate]
    make_table: Callable[[Stack], Table]


def _whole(
    name: str,
    bits: int,
    linear: Callable[[torch.Tensor, torch.Tensor | None], Linear],
    table: Callable[[torch.Tensor], Table],
) -> WeightForm:
    """Matrices that are made from all their rows at once, where the inputs are."""

    def make_linear(weight: Stack, bias: torch.Tensor | None) -> Linear:
        return linear(weight.whole(), bias)

    return WeightForm(
        name=name,
        bits=bits,
        make_linear=make_linear,
        make_gate=lambda weight, bias, activation: PlainGate(make_linear(weight, bias), activation),
        make_table=lambda weight: table(weight.whole()),
    )


def _integers(name: str, *, bits: Bits) -> WeightForm:
    return WeightForm(
        name=name,
        bits=bits,
        make_linear=partial(IntLinear, bits=bits),
        make_gate=partial(int_gate, bits=bits),
        make_table=partial(IntTable, bits=bits),
    )


FLOAT32 = _whole("float32", 32, FloatLinear, FloatTable)
BFLOAT16 = _whole("bfloat16", 16, Bfloat16Linear, Bfloat16Table)
INT12 = _integers("int12", bits=12)
INT8 = _integers("int8", bits=8)
# The table is looked up by row and, as a head, decides the token: it stays finer.
INT8_TORCH = _whole("int8 with inputs in int8", 8, TorchInt8Linear, Bfloat16Table)


CPU_FORMS: dict[WeightDtype, WeightForm] = {
    "float32": FLOAT32,
    "bfloat16": BFLOAT16,
    "int12": INT12,
    "int8": INT8,
}
GPU_FORMS: dict[WeightDtype, WeightForm] = {
    "float32": FLOAT32,
    "bfloat16": BFLOAT16,
    "int8": INT8_TORCH,
}
"""What a setting other than `auto` means on each."""


def choose_form(weight_dtype: WeightDtype, device: torch.device) -> WeightForm:
    """The form of a setting `engine.weight_dtype`. Raises ModelError for one that the device lacks.

    `auto` is bfloat16 on a GPU, whose fast products take no more. On a CPU it is the fastest form whose
    most likely token is that of float32 in 99 of 100 places: 12 bits; 8 bits change it in 4 of 100
    (SmolLM2-135M over this package's documents).
    """
    on_cpu = device.type == "cpu"
    if weight_dtype == "auto":
        return INT12 if on_cpu else BFLOAT16
    forms = CPU_FORMS if on_cpu else GPU_FORMS
    if weight_dtype not in forms:
        raise ModelError(
            f"weights in {weight_dtype} are for the CPU: use engine.weight_dtype auto, "
            "bfloat16, int8 or float32"
        )
    return forms[weight_dtype]
