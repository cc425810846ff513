"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.demo_model import demo_cache_dir, ensure_demo_model


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The real SmolLM2-135M-Instruct, converted; fetched once per user, as `appliance demo` does."""
    return ensure_demo_model(demo_cache_dir(), lambda stage, fraction: None)
