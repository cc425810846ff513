"""`appliance cache simulate`: options, combinations, table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.engine.trace import TraceWriter
from appliance.engine.trace_file import FORMAT, Section
from appliance.model.decoder import Decoder
from tests.engine_fixtures import decoder, model_directory
from tests.unit.engine.driver import Driver

__all__ = ["decoder", "model_directory"]

SECTION = Section(
    format=FORMAT,
    started_at=0.0,
    page_size=16,
    pages=32,
    host_slots=0,
    disk_slots=0,
    bytes_per_token=1024,
)


@pytest.fixture
def trace(decoder: Decoder, tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    driver = Driver(
        decoder, pages=32, page_size=16, trace=TraceWriter(path, SECTION, bytes_max=1 << 20)
    )
    for turn in range(3):
        for start in (5, 45, 85):
            driver.run([start + i % 40 for i in range(100 + turn)], new_tokens_max=2)
    return path


def simulate(*words: object) -> int:
    return main(["cache", "simulate", *map(str, words)])


def test_json_has_one_run_for_each_combination_and_the_unbounded_device(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--device-bytes", "128KiB,512KiB", "--host-bytes", "0,1MiB", "--page-size", "8,16"]
    assert simulate(trace, *sizes, "--policy", "engine,restore-never", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert simulate(trace, "--device-bytes", "999999TiB", "--host-bytes", "999999TiB") == 0
    runs = answer["runs"]
    assert len(runs) == 3 * 2 * 2 * 2
    by_size = {
        run["device_bytes"]: run["hit_ratio"]
        for run in runs
        if (run["page_size"], run["host_bytes"], run["policy"]) == (16, 0, "engine")
    }
    recorded = answer["recorded"]
    assert by_size[512 << 10] == pytest.approx(recorded["hit_ratio"])
    assert by_size[128 << 10] < by_size[512 << 10] <= by_size[None]
    restored = [run["outcome"]["onloaded_tokens"] for run in runs if run["host_bytes"]]
    assert max(restored) > 0


def test_the_table_of_an_unlucky_trace_warns_and_shows_what_more_memory_gives(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_bytes(trace.read_bytes()[:-5])
    assert simulate(trace) == 0
    out, err = capsys.readouterr()
    assert "left out" in err
    assert "recorded: 8 requests" in out
    assert [line.split()[0] for line in out.splitlines()[3:8]] == ["256", "512", "1", "2", "all"]


def test_bad_options_and_files_are_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--device-bytes", "2GB"], "not a size"),
        (["--page-size", "0"], "not a page size"),
        (["--policy", "fifo"], "none of engine"),
    ):
        with pytest.raises(SystemExit):
            simulate(trace, *words)
        assert said in capsys.readouterr().err
    many = ",".join(str(size) for size in range(1, 70))
    assert simulate(trace, "--device-bytes", many) == 2
    assert "at most 64" in capsys.readouterr().err
    trace.write_text("no trace")
    assert simulate(trace) == 2
    assert "not a trace" in capsys.readouterr().err
