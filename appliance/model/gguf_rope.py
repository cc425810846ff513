"""The rotary embeddings a GGUF file describes, as the fields of a `config.json`. Never: the angles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.fields import shown
from appliance.model.gguf_metadata import Metadata
from appliance.model.gguf_reader import Gguf

FREQUENCY_TENSOR = "rope_freqs.weight"

LLAMA3_FACTORS = (8.0, 32.0)
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL_TOKENS = 1.0, 4.0, 8192
"""Llama 3.1 and 3.3, then 3.2. A file holds only what comes out of these, one divisor a frequency."""

_YARN_BETAS = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}


def rope_fields(metadata: Metadata, *, theta_default: float) -> dict[str, Any]:
    """`rope_theta`, and `rope_scaling` where there is one; raises ModelError."""
    theta = metadata.get("rope.freq_base", theta_default)
    scaling = _scaling(metadata)
    if FREQUENCY_TENSOR in metadata.gguf.tensors:
        if scaling is not None:
            raise ModelError(f"{metadata.gguf.path}: {FREQUENCY_TENSOR} beside a rope scaling")
        scaling = _llama3_scaling(metadata.gguf, theta)
    fields = {"rope_theta": theta}
    return fields if scaling is None else {**fields, "rope_scaling": scaling}


def _scaling(metadata: Metadata) -> dict[str, Any] | None:
    kind = metadata.get("rope.scaling.type", "none")
    factor = metadata.get("rope.scaling.factor") or metadata.get("rope.scale_linear")
    metadata.refuse(
        "rope.scaling.alpha",
        "rope.scaling.attn_factor",
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
    )
    # Without a type a factor is linear (llama.cpp's default).
    untyped = metadata.get("rope.scaling.type") is None and factor not in (None, 1.0)
    if kind == "linear" or untyped:
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        scaling = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": metadata.need(
                "rope.scaling.original_context_length"
            ),
        }
        for name, key in _YARN_BETAS.items():
            if metadata.get(f"rope.scaling.{key}") is not None:
                scaling[name] = metadata.get(f"rope.scaling.{key}")
        return scaling
    if kind != "none":
        raise ModelError(f"{metadata.gguf.path}: rope scaling {shown(kind)} is not supported")
    return None


def _llama3_scaling(gguf: Gguf, theta: Any) -> dict[str, Any]:
    """The parameters the divisors in the file were made from, known by trying those in use."""
    tensor = gguf.tensors[FREQUENCY_TENSOR]
    if tensor.type.name != "F32" or len(tensor.shape) != 1 or not isinstance(theta, float):
        raise ModelError(f"{gguf.path}: tensor {FREQUENCY_TENSOR!r} is not a list of divisors")
    with gguf.path.open("rb") as file:
        file.seek(tensor.offset)
        stored = np.frombuffer(file.read(tensor.nbytes), dtype="<f4")
    for factor in LLAMA3_FACTORS:
        if np.allclose(stored, llama3_divisors(theta, factor, 2 * len(stored)), rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": LLAMA3_ORIGINAL_TOKENS,
            }
    raise ModelError(
        f"{gguf.path}: tensor {FREQUENCY_TENSOR!r} is of no scaling that is known (Llama 3.1 to 3.3); "
        "use the model's safetensors directory"
    )


def llama3_divisors(theta: float, factor: float, head_dim: int) -> NDArray[np.float64]:
    """What divides each frequency of a head, [head_dim / 2]: 1 for short waves, `factor` for long."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = LLAMA3_ORIGINAL_TOKENS / wavelengths
    smooth = ((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)).clip(0, 1)
    divisors: NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return divisors
