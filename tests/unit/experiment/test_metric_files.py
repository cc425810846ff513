"""Metrics of one's own, over the program's figures and over one's own; what is wrong with a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.experiment.metric_files import load_metrics

OWN = "- {name: %s, title: Own, unit: x, direction: up, group: quality, numerator: %s}\n"


@pytest.mark.parametrize("folder", ["own", "metrics"])
def test_own_metrics_are_over_the_programs_figures_and_over_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path(folder)
    own.mkdir()
    (own / "metrics.yaml").write_text(OWN % ("sent_twice", "replies.sent") + OWN % ("own", "own.x"))
    (own / "own.sql").write_text("SELECT 1 AS person, 2 AS x;\n")
    found, programs = load_metrics(own), load_metrics()
    assert found.by_name.keys() - programs.by_name.keys() == {"sent_twice", "own"}
    assert found.sql == {**programs.sql, "own": "SELECT 1 AS person, 2 AS x"}


@pytest.mark.parametrize(
    ("declared", "files", "told"),
    [
        (OWN % ("own", "own.x"), (), r"own\.sql: No such file"),
        (OWN % ("own", "replies.sent"), ("replies",), "the program has a file of this name"),
        (OWN % ("own", "own.x") + OWN % ("own", "own.y"), ("own",), "own is declared 2 times"),
        (OWN % ("own", "own"), ("own",), "say which column"),
    ],
)
def test_what_is_wrong_with_a_folder_is_told(
    tmp_path: Path, declared: str, files: tuple[str, ...], told: str
) -> None:
    (tmp_path / "metrics.yaml").write_text(declared)
    for name in files:
        (tmp_path / f"{name}.sql").write_text("SELECT 1 AS person, 2 AS x")
    with pytest.raises(ConfigError, match=told):
        load_metrics(tmp_path)
