"""The short form of `bench.chaos`: every kind of fault at least once, then every promise proved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.survival import clock, disk
from bench.survival.faults import KINDS

pytestmark = pytest.mark.slow

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
KILLS = 200 if NIGHTLY else 12
TIMEOUT_S = 3_600 if NIGHTLY else 600


def test_no_turn_is_lost_no_page_leaks_and_no_stream_is_stuck_whatever_is_killed(
    tmp_path: Path,
) -> None:
    verdict_path = tmp_path / "verdict.json"
    command = ("-m", "bench.chaos", "--kills", str(KILLS), "--again", "60")
    ended = subprocess.run(
        (sys.executable, *command, "--json", str(verdict_path)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=TIMEOUT_S,
        check=False,
    )
    assert verdict_path.exists(), ended.stdout + ended.stderr
    verdict = json.loads(verdict_path.read_text())
    assert verdict["outcome"] in ("PASSED", "NOT PROVED"), ended.stdout
    assert ended.returncode == (verdict["outcome"] == "NOT PROVED") * 2
    assert verdict["killed"] >= KILLS
    assert verdict["checked_turns"] == verdict["acknowledged"] > 0
    assert verdict["made_again"] > 0
    assert verdict["checked_calm"] > 0
    done = {name for name, one in verdict["recoveries"].items() if one["done"]}
    if disk.why_not() is None and clock.why_not() is None:
        assert done == set(KINDS), verdict["not_done"]
        assert verdict["outcome"] == "PASSED", ended.stdout
