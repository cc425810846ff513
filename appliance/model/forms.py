"""What the settings `engine.weight_dtype` and `engine.kv_dtype` mean. Never: loads or computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from appliance.model.int8_mm import TorchInt8Linear
from appliance.model.kv_cache import ELEMENT_TYPES, KVDtype
from appliance.model.linear import Bfloat16Linear, Bfloat16Table, FloatLinear, FloatTable
from appliance.model.weights import MakeLinear, MakeTable

WeightDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """How a model's matrices are kept. `name` goes into its fingerprint: forms compute different K/V."""

    name: str
    make_linear: MakeLinear
    make_table: MakeTable


FORMS: dict[WeightDtype, WeightForm] = {
    "float32": WeightForm(name="float32", make_linear=FloatLinear, make_table=FloatTable),
    "bfloat16": WeightForm(name="bfloat16", make_linear=Bfloat16Linear, make_table=Bfloat16Table),
    # The table is looked up by row and, as a head, decides the token: it stays finer.
    "int8": WeightForm(name="int8", make_linear=TorchInt8Linear, make_table=Bfloat16Table),
}


def weight_form(setting: WeightDtype, *, on_gpu: bool) -> WeightForm:
    """`auto` is bfloat16 on a GPU, whose fast products take no more, and float32 on the CPU."""
    return FORMS[("bfloat16" if on_gpu else "float32") if setting == "auto" else setting]


def kv_type(setting: KVDtype | Literal["auto"], *, on_gpu: bool) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, whose kernels read it in place, and float32 on the CPU."""
    return ELEMENT_TYPES[("bfloat16" if on_gpu else "float32") if setting == "auto" else setting]
