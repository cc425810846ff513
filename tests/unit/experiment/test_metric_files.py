"""Metrics of one's own, over the program's figures and over one's own; what is wrong with a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.experiment.metric_files import load_metrics
from tests.unit.experiment.test_definition import YAML_FAULTS

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


@pytest.mark.parametrize("text", YAML_FAULTS)
def test_what_is_no_yaml_is_told_with_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"metrics\.yaml: "):
        load_metrics(tmp_path)


@pytest.mark.parametrize("field", ["title", "unit"])
def test_a_text_that_no_page_takes_is_told(tmp_path: Path, field: str) -> None:
    texts = {"title": "T", "unit": "u", field: "\\ud800"}
    (tmp_path / "metrics.yaml").write_text(
        f'- {{name: own, title: "{texts["title"]}", unit: "{texts["unit"]}", direction: up, '
        "numerator: replies.sent, group: quality}\n"
    )
    with pytest.raises(ConfigError, match=rf"own: {field}: holds U\+0000 or half of a character"):
        load_metrics(tmp_path)
