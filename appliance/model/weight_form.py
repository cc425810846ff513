"""The forms of weights in memory, and which one a device gets. Never: files, a model's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch

from appliance.errors import ModelError
from appliance.model.int_linear import Bits, IntLinear, IntTable, int_gate
from appliance.model.linear import FloatLinear, FloatTable, Gate, Linear, PlainGate, Table
from appliance.model.shape import Activation
from appliance.model.stack import Stack

WeightDtype: TypeAlias = Literal["auto", "float32", "int12", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """How a decoder's matrices are made. A bias is float32 [out] and becomes the callee's own.

    name: what the model's fingerprint says of it; make_linear: from (weight [out, in], bias or None);
    make_gate: from the rows of G, then of U; make_table: from [vocab, hidden].
    """

    name: str
    make_linear: Callable[[Stack, torch.Tensor | None], Linear]
    make_gate: Callable[[Stack, torch.Tensor | None, Activation], Gate]
    make_table: Callable[[Stack], Table]


def _float_linear(weight: Stack, bias: torch.Tensor | None) -> Linear:
    return FloatLinear(weight.whole(), bias)


def _float_gate(weight: Stack, bias: torch.Tensor | None, activation: Activation) -> Gate:
    return PlainGate(FloatLinear(weight.whole(), bias), activation)


def _float_table(weight: Stack) -> Table:
    return FloatTable(weight.whole())


def _integers(name: str, *, bits: Bits) -> WeightForm:
    return WeightForm(
        name=name,
        make_linear=partial(IntLinear, bits=bits),
        make_gate=partial(int_gate, bits=bits),
        make_table=partial(IntTable, bits=bits),
    )


FLOAT32 = WeightForm(
    name="float32", make_linear=_float_linear, make_gate=_float_gate, make_table=_float_table
)
INT12 = _integers("int12", bits=12)
INT8 = _integers("int8", bits=8)


FORMS: dict[WeightDtype, WeightForm] = {"float32": FLOAT32, "int12": INT12, "int8": INT8}
"""What a setting other than `auto` means."""


def choose_form(weight_dtype: WeightDtype, device: torch.device) -> WeightForm:
    """The form of a setting `engine.weight_dtype`. Raises ModelError for one that the device lacks.

    `auto` is the fastest form of the device whose most likely token is that of float32 in 99 of 100
    places: 12 bits on a CPU; 8 bits change it in 4 of 100 (SmolLM2-135M over this package's documents).
    """
    on_cpu = device.type == "cpu"
    if weight_dtype == "auto":
        return INT12 if on_cpu else FLOAT32
    form = FORMS[weight_dtype]
    if form is not FLOAT32 and not on_cpu:
        raise ModelError(
            f"weights in {form.name} are for the CPU: use engine.weight_dtype auto or float32"
        )
    return form
