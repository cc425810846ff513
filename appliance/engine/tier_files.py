"""Opens the disk tier at the engine's start, or takes its file away. Never: reads a page."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from appliance.engine.disk_tier import DiskTier
from appliance.engine.slot_file import SlotFile, SlotShape
from appliance.model.kv_cache import KVCache

log = logging.getLogger("appliance.engine")


def open_disk(path: Path, slots: int, cache: KVCache, model_fingerprint: str) -> DiskTier | None:
    """The disk tier with what an earlier engine of the same model left in it; None without slots, when
    its file is removed, and when the disk fails, which is logged.

    Raises ConfigError for what the operator can change: see `SlotFile`.
    """
    if slots == 0:
        _remove(path)
        return None
    shape = SlotShape(
        model_fingerprint=model_fingerprint,
        kv_dtype=str(cache.data.dtype).removeprefix("torch."),
        page_size=cache.page_size,
        content_bytes=cache.page_content_bytes,
        slots=slots,
    )
    try:
        disk = DiskTier(SlotFile(path, shape), pinned=cache.data.device.type == "cuda")
    except OSError as error:
        log.error("disk_tier_off", extra={"failure": str(error), "file": path})
        return None
    log.info("disk_tier_open", extra={"pages": len(disk.found), "slots": slots})
    return disk


def _remove(path: Path) -> None:
    """A budget of nothing is kept too."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.ENOTDIR:
            log.warning("disk_tier_file_left", extra={"failure": str(error), "file": path})
