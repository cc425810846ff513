"""The forms of weights in memory, and which one a device gets. Never: files, a model's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from appliance.errors import ModelError
from appliance.model.int8_linear import Int8Linear, Int8Table
from appliance.model.weights import MakeLinear, MakeTable, float_linear, float_table

WeightDtype: TypeAlias = Literal["auto", "float32", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """`name`: what the model's fingerprint says of it."""

    name: str
    make_linear: MakeLinear
    make_table: MakeTable


FLOAT32 = WeightForm(name="float32", make_linear=float_linear, make_table=float_table)
INT8 = WeightForm(name="int8", make_linear=Int8Linear, make_table=Int8Table)


def choose_form(weight_dtype: WeightDtype, device: torch.device) -> WeightForm:
    """The form of a setting `engine.weight_dtype`. Raises ModelError for one that the device lacks."""
    if weight_dtype == "int8" and device.type != "cpu":
        raise ModelError("weights in int8 are for the CPU: use engine.weight_dtype auto or float32")
    return INT8 if weight_dtype == "int8" else FLOAT32
