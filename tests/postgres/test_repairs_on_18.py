"""Writes come back on a real PostgreSQL 18, whatever has driven it into the stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drill_fixtures import EMBEDDED, NewDrill
from tests.postgres.repair_cases import check_repair, names_on


@pytest.mark.parametrize("name", names_on(EMBEDDED))
async def test_writes_come_back_and_no_row_is_lost(
    name: str, new_drill: NewDrill, tmp_path: Path
) -> None:
    await check_repair(name, EMBEDDED, new_drill, tmp_path / "state")
