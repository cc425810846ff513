"""Writes come back on a real PostgreSQL 15, whatever has driven it into the stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drill_fixtures import SYSTEM, NewDrill
from tests.postgres.repair_cases import check_repair, names_on


@pytest.mark.parametrize("name", names_on(SYSTEM))
async def test_writes_come_back_and_no_row_is_lost(
    name: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    await check_repair(name, SYSTEM, new_drill, tmp_path / "state")
