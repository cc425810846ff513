"""Sizes the engine's memory and checks its limits against each other. Never: allocates anything."""

from __future__ import annotations

import os
from dataclasses import dataclass

from appliance.config import EngineConfig
from appliance.engine.loop import LoopSettings
from appliance.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes that fit together."""

    pages: int
    page_size: int
    threads: int
    loop: LoopSettings


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
    return EngineLimits(
        pages=pages,
        page_size=config.page_size,
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
