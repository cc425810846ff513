"""Sizes the engine's memory and checks its limits against each other. Never: allocates anything."""

from __future__ import annotations

import os
from dataclasses import dataclass

from appliance.config import EngineConfig
from appliance.engine.loop import LoopSettings
from appliance.errors import ConfigError

PIN_SHARE = 4
"""Without `engine.pin_pages_max`, pins may take one page in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes that fit together."""

    pages: int
    page_size: int
    threads: int
    loop: LoopSettings
    pin_pages_max: int = 0
    audit_tokens_per_minute: int = 0


def fit_limits(
    config: EngineConfig, *, model_context_tokens: int, bytes_per_page: int, cores: int
) -> EngineLimits:
    """The limits of an engine; raises ConfigError naming both numbers that contradict."""
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
        threads=config.threads or cores,
        loop=LoopSettings(
            context_tokens_max=context_tokens_max,
            running_max=config.running_max,
            waiting_max=config.waiting_max,
            step_tokens_max=config.step_tokens_max,
        ),
    )


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))
