"""Which attention back end a device has. Never: computes."""

from __future__ import annotations

import torch

from appliance.model.attention import Backend, torch_attention
from appliance.model.cpu_attention import CpuAttention
from appliance.model.cuda_attention import cuda_attention


def choose_backend(device: torch.device, *, softcap: bool) -> Backend:
    """The fast back end of a device; on the CPU the Rust kernel, which knows no soft-cap."""
    if device.type == "cuda":
        return cuda_attention
    return torch_attention if softcap else CpuAttention
