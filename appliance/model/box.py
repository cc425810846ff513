"""What this box has: memory, disk, GPUs. Never: allocates any of it."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.model.footprint import Tier


def box_tiers(folder: Path, *, weights_bytes: int) -> tuple[Tier, ...]:
    """The places K/V pages could lie in, from the fastest: GPUs if there are any, memory, the folder's disk.

    Weights are taken off the first of them, for they lie in the same memory.
    """
    disk = os.statvfs(_existing(folder))
    tiers = [
        *_gpus(),
        Tier(name="memory", available_bytes=_memory_bytes()),
        Tier(name="disk", available_bytes=disk.f_bavail * disk.f_frsize),
    ]
    left = max(tiers[0].available_bytes - weights_bytes, 0)
    return (Tier(name=tiers[0].name, available_bytes=left), *tiers[1:])


def _memory_bytes() -> int:
    """What could be had without swapping (`MemAvailable` of proc(5))."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _gpus() -> list[Tier]:
    # Here, because it takes a second and no other command of this file's users needs it.
    import torch

    return [
        Tier(name=f"cuda:{index}", available_bytes=torch.cuda.mem_get_info(index)[0])
        for index in range(torch.cuda.device_count())
    ]
