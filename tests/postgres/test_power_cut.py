"""What was promised to be there survives a power cut: real ext4, shut down without flushing its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.survival.disk import why_not

LACKING = why_not()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")


def test_a_database_that_was_just_created_starts_after_a_power_cut(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    ended = subprocess.run(
        (sys.executable, "-m", "tests.postgres.new_cluster_on_cut_disk", str(tmp_path)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=False,
    )
    assert (ended.stdout, ended.returncode) == ("started\n", 0), ended.stderr
