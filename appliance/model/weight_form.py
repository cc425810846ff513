"""The forms of weights in memory, and which one a device gets. Never: files, a model's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from appliance.errors import ModelError
from appliance.model.int8_linear import Int8Linear, Int8Table, int8_gate
from appliance.model.linear import FloatLinear, FloatTable, Gate, Linear, PlainGate, Table
from appliance.model.shape import Activation
from appliance.model.stack import Stack

WeightDtype: TypeAlias = Literal["auto", "float32", "int8"]


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


FLOAT32 = WeightForm(
    name="float32", make_linear=_float_linear, make_gate=_float_gate, make_table=_float_table
)
INT8 = WeightForm(name="int8", make_linear=Int8Linear, make_gate=int8_gate, make_table=Int8Table)


def choose_form(weight_dtype: WeightDtype, device: torch.device) -> WeightForm:
    """The form of a setting `engine.weight_dtype`. Raises ModelError for one that the device lacks."""
    if weight_dtype == "int8" and device.type != "cpu":
        raise ModelError("weights in int8 are for the CPU: use engine.weight_dtype auto or float32")
    return INT8 if weight_dtype == "int8" else FLOAT32
