"""The journal of repairs: what a run that was killed leaves for the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.dbops.plan.history import History, RelationKey
from appliance.dbops.plan.step import StepKind
from appliance.dbops.repair.run_journal import FILE_NAME, RunJournal, past_history
from appliance.errors import DatabaseError

PLACE = RelationKey(database="app", oid=7)


def begin(journal: RunJournal, kind: StepKind) -> None:
    journal.write("started", kind=kind, database=PLACE.database, relation_oid=PLACE.oid)


def end(
    journal: RunJournal, kind: StepKind, state: str, *, size: int = 1 << 30, seconds: float = 1.0
) -> None:
    place: dict[str, Any] = {"database": PLACE.database, "relation_oid": PLACE.oid}
    journal.write("ended", kind=kind, state=state, bytes=size, seconds=seconds, **place)


def vacuum(journal: RunJournal, state: str | None, *, seconds: float = 1.0) -> None:
    begin(journal, StepKind.VACUUM)
    if state is not None:
        end(journal, StepKind.VACUUM, state, seconds=seconds)


def test_records_outlive_a_kill_and_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    journal.write("begun")
    journal.close()
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"event": "star')
    again = RunJournal(tmp_path, "1")
    assert [record["event"] for record in again.records] == ["begun"]
    assert again.unfinished
    again.write("finished")
    again.close()
    lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["begun", "finished"]
    last = RunJournal(tmp_path, "1")
    assert not last.unfinished
    last.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    journal.write("begun")
    with pytest.raises(DatabaseError, match="in use"):
        RunJournal(tmp_path, "1")
    journal.close()


def test_what_is_of_the_cluster_before_an_upgrade_is_kept_and_passed_over(tmp_path: Path) -> None:
    old = RunJournal(tmp_path, "1")
    old.write("settings_changed", before={"autovacuum": "off"})
    vacuum(old, None)
    old.close()
    new = RunJournal(tmp_path, "2")
    assert not new.unfinished
    assert new.settings_to_restore() == {}
    assert new.history() == past_history(tmp_path, "2") == History()
    new.write("begun")
    new.close()
    again = RunJournal(tmp_path, "1")
    assert again.settings_to_restore() == {"autovacuum": "off"}
    assert again.history().frozen == {PLACE}
    again.close()


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"{}\n",
        b'{"event": 1, "system_id": "1"}\n',
        b"[]\n",
        b'{"event": "started", "system_id": "1"}\n',
        b'{"event": "settings_changed", "system_id": "1"}\n',
        pytest.param(b"[" * 200_000 + b"\n", id="nested"),
    ],
)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"event": "begun", "system_id": "1"}\n' + line)
    with pytest.raises(DatabaseError, match="line 2"):
        RunJournal(tmp_path, "1")
    with pytest.raises(DatabaseError, match="line 2"):
        past_history(tmp_path, "1")


def test_a_damaged_line_takes_nothing_with_it_that_is_still_to_be_done(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    journal.write("settings_changed", before={"autovacuum_naptime": None, "autovacuum": "off"})
    begin(journal, StepKind.ZERO_PAGES)
    journal.close()
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(DatabaseError) as raised:
        RunJournal(tmp_path, "1")
    assert (
        "ALTER SYSTEM RESET autovacuum_naptime; ALTER SYSTEM SET autovacuum = 'off'; "
        "SELECT pg_reload_conf(); REINDEX of the relation 7 in app. Do it, then move the file away"
    ) in raised.value.message


def test_settings_go_back_to_what_they_were_before_the_first_run_that_changed_them(
    tmp_path: Path,
) -> None:
    journal = RunJournal(tmp_path, "1")
    assert journal.settings_to_restore() == {}
    journal.write("settings_changed", before={"autovacuum_naptime": None, "autovacuum": "off"})
    journal.write("settings_changed", before={"autovacuum_naptime": "1s", "autovacuum": "on"})
    assert journal.settings_to_restore() == {"autovacuum_naptime": None, "autovacuum": "off"}
    journal.write("settings_restored")
    assert journal.settings_to_restore() == {}
    journal.close()


@pytest.mark.parametrize(
    ("state", "expected"), [(None, True), ("done", True), ("held", True), ("failed", False)]
)
def test_what_was_frozen_is_to_be_repaired_even_when_nobody_wrote_down_its_end(
    tmp_path: Path, state: str | None, expected: bool
) -> None:
    journal = RunJournal(tmp_path, "1")
    vacuum(journal, state)
    journal.close()
    frozen = past_history(tmp_path, "1").frozen
    assert frozen == ({PLACE} if expected else set())


def test_a_repair_that_is_done_is_not_to_be_done_again(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    vacuum(journal, "done")
    begin(journal, StepKind.REPAIR)
    assert journal.history().frozen
    end(journal, StepKind.REPAIR, "done")
    assert not journal.history().frozen
    vacuum(journal, "done")
    assert journal.history().frozen
    journal.close()


def test_the_rate_is_that_of_large_steps_alone(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    assert journal.history().rate_bytes_per_s is None
    end(journal, StepKind.VACUUM, "done", size=8192, seconds=9.0)
    assert journal.history().rate_bytes_per_s is None
    vacuum(journal, "done", seconds=4.0)
    assert journal.history().rate_bytes_per_s == (1 << 30) / 4
    journal.close()


def test_a_folder_without_a_journal_has_no_history(tmp_path: Path) -> None:
    assert past_history(tmp_path / "missing", "1").frozen == frozenset()


def test_indexes_that_a_killed_run_was_building_are_built_anew(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path, "1")
    begin(journal, StepKind.REINDEX)
    assert journal.history().bad_indexes == {PLACE}
    end(journal, StepKind.REINDEX, "failed")
    assert journal.history().bad_indexes == {PLACE}
    end(journal, StepKind.REINDEX, "done")
    assert journal.history().bad_indexes == frozenset()
    journal.close()


@pytest.mark.parametrize("state", [None, "done", "held", "failed"])
def test_what_gave_pages_up_is_to_get_new_indexes_however_that_ended(
    tmp_path: Path, state: str | None
) -> None:
    journal = RunJournal(tmp_path, "1")
    begin(journal, StepKind.ZERO_PAGES)
    if state is not None:
        end(journal, StepKind.ZERO_PAGES, state)
    assert journal.history().given_up == {PLACE}
    end(journal, StepKind.REPAIR, "done")
    begin(journal, StepKind.REINDEX)
    end(journal, StepKind.REINDEX, "failed")
    assert journal.history().given_up == {PLACE}
    end(journal, StepKind.REINDEX, "done")
    assert journal.history().given_up == frozenset()
    begin(journal, StepKind.ZERO_PAGES)
    assert journal.history().given_up == {PLACE}
    journal.close()
