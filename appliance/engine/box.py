"""What this box has for keys and values: GPUs, memory, disk. Never: allocates any of it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from appliance.engine.limits import available_memory_bytes
from appliance.model.weight_form import choose_form


def free_bytes(folder: Path, *, weights_bytes: int) -> dict[str, int]:
    """Tier -> bytes it has now, fastest first: each GPU, `memory`, and `disk`, where `folder` lies.

    Weights are taken off where they would lie: off every GPU (each holds all of them), or off memory
    when there is none. Never below zero.
    """
    disk = os.statvfs(_existing(folder))
    gpus = {
        f"cuda:{index}": torch.cuda.mem_get_info(index)[0]
        for index in range(torch.cuda.device_count())
    }
    memory = {"memory": available_memory_bytes()}
    compute, host = (gpus, memory) if gpus else (memory, {})
    left = {name: max(0, free - weights_bytes) for name, free in compute.items()}
    return {**left, **host, "disk": disk.f_bavail * disk.f_frsize}


def weight_bits() -> int:
    """Bits of a weight as an engine keeps it here, with the settings left alone."""
    device = torch.device("cuda" if torch.cuda.device_count() else "cpu")
    return choose_form("auto", device).bits


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it: it may be made later."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
