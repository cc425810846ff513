"""What a drill decides without a server: names, differences, where a counter is put."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.dbops.drill.counters import STATUSES_PER_PAGE, xid_page_start
from appliance.dbops.drill.ground import GROUND
from appliance.dbops.drill.registry import SITUATIONS, SUMMARIES, situation
from appliance.dbops.drill.rehearsal import unforeseen
from appliance.dbops.drill.situation import Counter, Together
from appliance.dbops.limits import STOP_AGE
from appliance.dbops.repair.row_counts import RowChange
from appliance.errors import NotFound


def test_every_situation_of_the_registry_can_be_made_and_has_a_line() -> None:
    for name in SITUATIONS:
        made = situation(name)
        assert made.name == name
        assert SUMMARIES[name] == made.summary
        assert "\n" not in made.summary


def test_an_unknown_situation_is_refused_with_the_command_that_names_them() -> None:
    with pytest.raises(NotFound, match=r"no situation flood.*--list"):
        situation("flood")


def test_a_change_is_unforeseen_unless_the_situation_has_it() -> None:
    found = [
        RowChange(database="app", table='"public"."pending"', words="1 row more", is_loss=False),
        RowChange(database="app", table='"public"."texts"', words="it is gone", is_loss=True),
        RowChange(database="other", table='"public"."pending"', words="it is gone", is_loss=True),
    ]
    assert unforeseen(found, situation("prepared")) == (
        'app."public"."texts": it is gone',
        'other."public"."pending": it is gone',
    )
    assert len(unforeseen(found, situation("plain"))) == 3


def test_the_next_xid_begins_a_page_just_below_the_stop() -> None:
    for oldest in (730, 744, 999_981_056):
        begin = xid_page_start(oldest + STOP_AGE)
        assert begin % STATUSES_PER_PAGE == 0
        assert 0 <= oldest + STOP_AGE - begin < STATUSES_PER_PAGE


def test_the_loop_that_spends_xids_is_longer_than_what_can_be_left() -> None:
    assert "1..40000" in GROUND["spend_xids"]
    assert STATUSES_PER_PAGE < 40_000


def test_together_needs_what_its_parts_need() -> None:
    parts = situation("prepared"), situation("orphan")
    both = Together(*parts)
    assert both.consents == parts[0].consents | parts[1].consents
    assert both.changes == parts[0].changes
    assert both.single_user
    assert both.holds_back
    assert both.counter is Counter.XIDS


def test_the_command_lists_every_situation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "drill", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SITUATIONS)


def test_the_command_refuses_what_it_cannot_do_before_it_makes_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    for words, reason in (
        (["flood"], "no situation flood"),
        (["plain", "idle", "--hold"], "one situation at a time"),
        (["plain", "--keep", str(tmp_path)], "is not empty"),
        (["plain", "--version-bin", str(tmp_path)], "holds no PostgreSQL"),
    ):
        assert main(["db", "drill", *words]) == 2
        assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
