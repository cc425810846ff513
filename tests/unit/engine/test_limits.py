"""Limits that contradict each other are told by both numbers."""

from __future__ import annotations

import pytest
import torch

from appliance.config import EngineConfig
from appliance.engine.limits import EngineLimits, fit_limits
from appliance.errors import ConfigError


def fit(config: EngineConfig) -> EngineLimits:
    return fit_limits(config, model_context_tokens=512, bytes_per_page=1000, cores=3)


def test_pages_fill_the_memory_given_and_the_context_is_the_models() -> None:
    limits = fit(EngineConfig(kv_cache_bytes=100_999, page_size=16))
    assert limits.pages == 100
    assert limits.loop.context_tokens_max == 512
    assert limits.threads == 3
    assert fit(EngineConfig(threads=2)).threads == 2


def test_a_context_that_just_fits_the_cache_is_taken() -> None:
    assert fit(EngineConfig(kv_cache_bytes=32_000, page_size=16)).pages == 32


def test_a_context_over_the_cache_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(EngineConfig(kv_cache_bytes=31_999, page_size=16))
    for number in ("512", "496", "31999", "32000"):
        assert number in caught.value.message


def test_a_context_over_the_models_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(EngineConfig(context_tokens_max=513))
    assert "513" in caught.value.message
    assert "512" in caught.value.message


def test_a_step_that_cannot_decode_all_that_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"15.*16"):
        fit(EngineConfig(step_tokens_max=15, running_max=16))


def test_one_tenant_may_fill_three_quarters_of_the_queue_or_what_is_set() -> None:
    assert fit(EngineConfig(waiting_max=100)).loop.waiting_per_tenant_max == 75
    limits = fit(EngineConfig(waiting_max=100, waiting_per_tenant_max=100, step_ms_max=80))
    assert limits.loop.waiting_per_tenant_max == 100
    assert limits.loop.step_ms_max == 80
    with pytest.raises(ConfigError, match=r"101.*100"):
        fit(EngineConfig(waiting_max=100, waiting_per_tenant_max=101))


def test_pins_get_a_quarter_of_the_pages_or_what_is_set() -> None:
    assert fit(EngineConfig(kv_cache_bytes=100_000)).pin_pages_max == 25
    assert fit(EngineConfig(kv_cache_bytes=100_000, pin_pages_max=0)).pin_pages_max == 0
    assert fit(EngineConfig(kv_cache_bytes=100_000, pin_pages_max=100)).pin_pages_max == 100
    with pytest.raises(ConfigError, match=r"engine.pin_pages_max \(101\).*100 pages"):
        fit(EngineConfig(kv_cache_bytes=100_000, pin_pages_max=101))


def test_the_sampled_audit_is_on_by_default_and_can_be_turned_off() -> None:
    assert fit(EngineConfig()).audit_tokens_per_minute == 1000
    assert fit(EngineConfig(audit_tokens_per_minute=0)).audit_tokens_per_minute == 0


def test_bfloat16_keys_are_for_gpus_where_they_are_the_default() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_dtype"):
        fit(EngineConfig(kv_dtype="bfloat16"))
    assert fit(EngineConfig()).kv_dtype == torch.float16
    on_gpu = fit_limits(
        EngineConfig(), model_context_tokens=512, bytes_per_page=1000, cores=3, on_gpu=True
    )
    assert on_gpu.kv_dtype == torch.bfloat16
