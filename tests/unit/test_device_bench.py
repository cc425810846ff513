"""The GPU's bench runs to its end here, on the CPU and a tiny model."""

from __future__ import annotations

import re

import pytest

from bench.device import main


def test_every_part_of_the_bench_runs_and_float32_is_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--device", "cpu", "--shape", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"^parity: weights \w+, K/V \w+: logits differ by ", printed, re.M)) == 6
    for line in (r"decode of 4, launched: \S+", r"from host: \S+ GB/s", r"done in \d+ s"):
        assert re.search(line, printed), line
    found = re.search(r"chats: (\d+) pages came back", printed)
    assert found
    assert int(found[1]) > 0
