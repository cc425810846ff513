"""`appliance experiment check` where no appliance runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from appliance.cli import experiment_check
from appliance.cli.admin_client import Answered
from appliance.cli.experiment_check import check_again
from appliance.cli.main import main


def test_a_check_of_what_does_not_run_fails_once_and_is_tried_again_in_a_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--data-dir", str(tmp_path / "nothing")]
    assert main(["experiment", "check", *place]) != 0
    told = capsys.readouterr().err
    assert told
    options = argparse.Namespace(
        config=None, data_dir=tmp_path / "nothing", metrics=None, pages=None, json=False
    )
    check_again(options)
    assert capsys.readouterr().err == told


def test_a_loop_without_a_pause_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "check", "--every", "0"]) == 2
    assert "--every: 0 is not 1 to 10080 minutes" in capsys.readouterr().err


def test_an_experiment_that_was_ended_meanwhile_leaves_the_others_to_be_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = {"ended": Answered("conflict", "it is stopped"), "away": Answered("other", "no")}

    def ask(_: object, __: str, path: str, ___: object) -> object:
        name = path.split("/")[2]
        if name in refusals:
            raise refusals[name]
        return {"paused": True}

    monkeypatch.setattr(experiment_check, "ask", ask)
    options = argparse.Namespace()
    assert experiment_check._pause(options, "ended", "a", "why") is False
    assert experiment_check._pause(options, "runs", "a", "why") is True
    with pytest.raises(Answered):
        experiment_check._pause(options, "away", "a", "why")
