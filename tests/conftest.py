"""Fixtures that several folders of tests share, and how files of tests are shared out to workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.cli.demo_model import demo_cache_dir, ensure_demo_model
from tests.browser import chromium

__all__ = ["chromium"]

# Threads of torch that wait for work spin, on the cores that the other workers and processes compute on.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).parent.parent

LONGEST_FIRST = (
    "tests/e2e/test_stopped_database.py",
    "tests/e2e/test_database_away.py",
    "tests/box/test_operation_cases.py",
    "tests/box/test_upgrade.py",
    "tests/box/test_booted_box.py",
    "tests/postgres/test_repairs_on_18.py",
    "tests/e2e/test_faults.py",
    "tests/box/test_upgrade.py",
    "tests/postgres/test_repairs_on_15.py",
    "tests/e2e/test_database_away.py",
    "tests/e2e/test_chaos.py",
    "tests/box/test_closed_box.py",
    "tests/postgres/test_run.py",
    "tests/postgres/test_run_obstacles.py",
    "tests/e2e/test_abandoned.py",
    "tests/postgres/test_point_in_time.py",
    "tests/postgres/test_backup.py",
    "tests/unit/model/test_parity.py",
    "tests/postgres/test_upgrade.py",
    "tests/postgres/test_inspect_situations.py",
    "tests/properties/test_tokenizer_parity.py",
    "tests/e2e/test_several_engines.py",
    "tests/postgres/test_cluster.py",
    "tests/e2e/test_long_chat.py",
    "tests/unit/model/test_families.py",
    "tests/unit/model/test_weight_form.py",
)
"""Begun last, one would keep a worker busy alone. Those that compute stand between those that wait."""


def pytest_xdist_auto_num_workers() -> int:
    """Three workers on two cores: a worker often waits for a process that starts or stops."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the others stay in their order."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The real SmolLM2-135M-Instruct, converted; fetched once per user, as `appliance demo` does."""
    return ensure_demo_model(demo_cache_dir(), lambda stage, fraction: None)
