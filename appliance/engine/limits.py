"""Sizes the engine's memory and checks its limits against each other. Never: allocates anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from appliance.config import EngineConfig
from appliance.engine.loop import LoopSettings
from appliance.engine.slot_file import slots_in
from appliance.engine.tier_costs import Tier
from appliance.errors import ConfigError
from appliance.model.kv_cache import CPU_ELEMENTS, kv_type

SLOTS_MAX = 2**32 - 1
SLOT_OVERHEAD_BYTES = 300
"""What the index and the tier remember of a page beside its content (measured: 250 bytes)."""

PIN_SHARE = 4
"""Without `engine.pin_pages_max`, pins may take one page in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes that fit together."""

    pages: int
    page_size: int
    kv_dtype: torch.dtype = torch.float32
    host_slots: int = 0
    disk_slots: int = 0
    threads: int
    loop: LoopSettings
    pin_pages_max: int = 0
    audit_tokens_per_minute: int = 0


def fit_limits(
    config: EngineConfig,
    *,
    model_context_tokens: int,
    bytes_per_page: int,
    cores: int,
    on_gpu: bool = False,
) -> EngineLimits:
    """The limits of an engine; raises ConfigError naming both numbers that contradict."""
    kv_dtype = kv_type(config.kv_dtype, on_gpu=on_gpu)
    if kv_dtype not in CPU_ELEMENTS and not on_gpu:
        raise ConfigError('engine.kv_dtype "bfloat16" is for GPUs: use float32, float16 or int8')
    pages = config.kv_cache_bytes // bytes_per_page
    capacity = pages * config.page_size
    context_tokens_max = config.context_tokens_max or model_context_tokens
    if context_tokens_max > model_context_tokens:
        raise ConfigError(
            f"engine.context_tokens_max ({context_tokens_max}) is over the model's context "
            f"({model_context_tokens})"
        )
    if context_tokens_max > capacity:
        needed = -(-context_tokens_max // config.page_size) * bytes_per_page
        raise ConfigError(
            f"engine.context_tokens_max ({context_tokens_max}) is over the {capacity} tokens that "
            f"engine.kv_cache_bytes ({config.kv_cache_bytes}) can hold; one full context needs "
            f"{needed} bytes"
        )
    if config.step_tokens_max < config.running_max:
        raise ConfigError(
            f"engine.step_tokens_max ({config.step_tokens_max}) must be at least "
            f"engine.running_max ({config.running_max}): a step decodes one token of each"
        )
    pin_pages_max = pages // PIN_SHARE if config.pin_pages_max is None else config.pin_pages_max
    if pin_pages_max > pages:
        raise ConfigError(
            f"engine.pin_pages_max ({pin_pages_max}) is over the {pages} pages that "
            f"engine.kv_cache_bytes ({config.kv_cache_bytes}) can hold"
        )
    return EngineLimits(
        pages=pages,
        pin_pages_max=pin_pages_max,
        audit_tokens_per_minute=config.audit_tokens_per_minute,
        page_size=config.page_size,
        kv_dtype=kv_dtype,
        host_slots=_slots("host", config.host_cache_bytes, bytes_per_page),
        disk_slots=_slots("disk", config.disk_cache_bytes, bytes_per_page),
        threads=config.threads or cores,
        loop=LoopSettings(
            context_tokens_max=context_tokens_max,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
            step_tokens_max=config.step_tokens_max,
            waiting_per_tenant_max=_waiting_per_tenant_max(config),
            step_ms_max=config.step_ms_max,
        ),
    )


def check_memory(config: EngineConfig, *, on_gpu: bool, available_bytes: int) -> None:
    """Raises ConfigError when the host tier and the cache cannot both be in this machine's memory.

    Without a host tier nothing is checked: the cache takes memory by use, so a machine may serve for long
    with less than all of it.
    """
    if config.host_cache_bytes == 0:
        return
    needed = config.host_cache_bytes + (0 if on_gpu else config.kv_cache_bytes)
    if needed > available_bytes:
        also = "" if on_gpu else f" and engine.kv_cache_bytes ({config.kv_cache_bytes})"
        raise ConfigError(
            f"engine.host_cache_bytes ({config.host_cache_bytes}){also} take {needed} bytes of memory; "
            f"{available_bytes} are available"
        )


def available_memory_bytes() -> int:
    """Memory that this process can still take: of the machine, or of its control group if less."""
    fields = dict(
        line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    )
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit = _cgroup_bytes("memory.max")
    if limit is None:
        return available
    return max(0, min(available, limit - (_cgroup_bytes("memory.current") or 0)))


def _cgroup_bytes(name: str) -> int | None:
    """A number of this process's control group (version 2, as it is mounted in a container)."""
    path = Path("/sys/fs/cgroup") / name
    text = path.read_text(encoding="ascii").strip() if path.is_file() else "max"
    return None if text == "max" else int(text)


def _slots(tier: Tier, budget: int, content_bytes: int) -> int:
    """Pages that a tier's budget has room for; raises ConfigError when it has for none."""
    if budget == 0:
        return 0
    if tier == "host":
        slots = budget // (content_bytes + SLOT_OVERHEAD_BYTES)
    else:
        slots = slots_in(budget, content_bytes)
    if slots == 0:
        raise ConfigError(
            f"engine.{tier}_cache_bytes ({budget}) has no room for a page of {content_bytes} bytes; "
            f"0 turns the tier off"
        )
    return min(slots, SLOTS_MAX)


def _waiting_per_tenant_max(config: EngineConfig) -> int:
    """Three quarters of the queue where nothing is set: one tenant cannot fill it."""
    own = config.waiting_per_tenant_max
    if own is None:
        return max(1, config.waiting_max * 3 // 4)
    if own > config.waiting_max:
        raise ConfigError(
            f"engine.waiting_per_tenant_max ({own}) is over engine.waiting_max "
            f"({config.waiting_max})"
        )
    return own


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))
