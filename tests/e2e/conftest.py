"""One running demo for all whole-product tests; those that kill processes start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box, start_box, stop_box


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A demo on a free port."""
    running = start_box(tmp_path_factory.mktemp("box"))
    yield running
    assert stop_box(running) == 0


@pytest.fixture(scope="module")
def worn_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A demo whose parts the tests of a file kill one after the other; it is to mend itself each time."""
    running = start_box(tmp_path_factory.mktemp("worn") / "data")
    yield running
    stop_box(running)


@pytest.fixture
def own_box(tmp_path: Path) -> Iterator[Box]:
    """A demo that a test may break."""
    running = start_box(tmp_path / "data")
    yield running
    stop_box(running)
