"""The small decisions of a repair: faults, progress, room on the disk, row counts, consent."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import asyncpg
import pytest

from appliance.cli.db_plan_text import plan_json, plan_text
from appliance.cli.db_run_terminal import TerminalReport, confirm_by
from appliance.cli.db_text import status_text
from appliance.cli.main import main
from appliance.dbops.blockers.blockers import blockers
from appliance.dbops.faults import RepairFault, damaged_block, damaged_file, repair_fault
from appliance.dbops.limits import MEMBERS_MAX
from appliance.dbops.monitoring.status import status_of
from appliance.dbops.plan.plan import make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent, StepKind
from appliance.dbops.repair import disk_floor
from appliance.dbops.repair.disk_floor import least_room, wal_folders
from appliance.dbops.repair.progress import ProgressMeter
from appliance.dbops.repair.row_counts import (
    RowCounts,
    TableRows,
    changes,
    check_new,
    read_counts,
    write_counts,
)
from appliance.dbops.repair.verify import check_ages, smallest
from appliance.dbops.snapshot.snapshot import MemberSpace, TempNamespace
from appliance.errors import ConfigError
from tests.snapshot_builder import OLD, database, prepared, relation, slot, snapshot, template0
from tests.unit.dbops.clusters import SETTINGS


def server_error(state: str, routine: str = "", words: str = "", detail: str = "") -> Exception:
    """An error as a server would send it."""
    fields = {"C": state, "R": routine, "M": words, "D": detail, "S": "ERROR"}
    error: Exception = asyncpg.PostgresError.new(fields)
    return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (server_error("54000", "GetNewTransactionId", "¡sin palabras!"), RepairFault.XID_STOP),
        (server_error("54000", "GetNewMultiXactId"), RepairFault.MULTIXACT_STOP),
        (server_error("54000", "index_form_tuple"), RepairFault.OTHER),
        (server_error("55P03"), RepairFault.LOCKED),
        (server_error("57014"), RepairFault.CANCELLED),
        (server_error("XX001"), RepairFault.DAMAGED),
        (server_error("XX002"), RepairFault.DAMAGED),
        (server_error("53100"), RepairFault.DISK_FULL),
        (server_error("42P01"), RepairFault.GONE),
        (server_error("57P01"), RepairFault.CONNECTION),
        (server_error("08006"), RepairFault.CONNECTION),
        (ConnectionResetError(), RepairFault.CONNECTION),
        (server_error("22012"), RepairFault.OTHER),
        (ValueError(), RepairFault.OTHER),
    ],
)
def test_a_fault_is_told_by_sqlstate_and_routine_and_not_by_words(
    error: Exception, fault: RepairFault
) -> None:
    assert repair_fault(error) is fault


@pytest.mark.parametrize(
    ("words", "detail", "file", "block"),
    [
        ('invalid page in block 5 of relation "base/5/16397"', "", 16397, 5),
        ("ungültige Seite in Block 12 von Relation base/16384/99", "", 99, 12),
        ('invalid page in block 3 of relation "global/1262"', "", 1262, 3),
        (
            'could not read blocks 1 in file "pg_tblspc/90/PG_18_202506291/5/77"',
            "",
            77,
            1,
        ),
        (
            '2 invalid pages among blocks 5..8 of relation "base/5/16397"',
            "Block 6 held the first invalid page.",
            16397,
            6,
        ),
        ("found xmin 754 from before relfrozenxid 758", "", None, None),
    ],
)
def test_the_damaged_page_is_read_from_numbers_and_paths(
    words: str, detail: str, file: int | None, block: int | None
) -> None:
    error = server_error("XX001", words=words, detail=detail)
    assert damaged_file(error) == file
    assert damaged_block(error) == block


def test_progress_counts_bytes_the_rate_and_the_time_left() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD, pages=1000), relation(20_001, OLD, pages=3000))
        ),
        Policy(last_stage=1),
    )
    page = 8192
    meter = ProgressMeter(plan.steps, rate_bytes_per_s=1000 * page, now_s=0.0)
    meter.started("vacuum:1:app:20000")
    meter.advanced("vacuum:1:app:20000", 500, 1000)
    half = meter.at(0.5)
    assert half.bytes_done == 500 * page
    assert half.bytes_total == 4000 * page
    assert half.rate_bytes_per_s == pytest.approx(1000 * page)
    assert half.seconds_left == pytest.approx(3.5, abs=0.1)
    assert half.running == (("app.public.t20000", 0.5),)
    meter.ended("vacuum:1:app:20000")
    later = meter.at(2.5)
    assert (later.steps_done, later.bytes_done) == (1, 1000 * page)
    assert later.rate_bytes_per_s < half.rate_bytes_per_s


def test_the_floor_is_the_smaller_of_a_number_and_a_tenth_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = least_room([tmp_path], 1)
    assert room is not None
    assert room.is_enough
    assert room.floor_bytes == 1
    large = least_room([tmp_path], 1 << 60)
    assert large is not None
    assert large.floor_bytes < 1 << 50
    monkeypatch.setattr(disk_floor, "FLOOR_SHARE", 2.0)
    full = least_room([tmp_path], 1 << 60)
    assert full is not None
    assert not full.is_enough
    assert least_room([], 1) is None


def test_wal_is_looked_for_where_its_link_leads(tmp_path: Path) -> None:
    assert wal_folders(None) == ()
    assert wal_folders(tmp_path) == ()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pg_wal").symlink_to(tmp_path / "elsewhere")
    assert wal_folders(tmp_path) == (tmp_path, tmp_path / "elsewhere")


def counts(**rows: int | None) -> RowCounts:
    return RowCounts(
        system_id="1",
        tables=tuple(
            TableRows(database="app", table=name, rows=number) for name, number in rows.items()
        ),
    )


def test_rows_that_are_missing_are_a_loss_and_what_others_may_have_done_is_not_judged(
    tmp_path: Path,
) -> None:
    before = counts(same=5, fewer=5, more=5, gone=5, unread=5, broken=None)
    write_counts(tmp_path / "before.json", before)
    assert read_counts(tmp_path / "before.json") == before
    after = counts(same=5, fewer=4, more=6, unread=None, broken=None, new=1)
    found = {change.table: change.is_loss for change in changes(before, after)}
    assert found == {"fewer": True, "more": None, "gone": True, "unread": True}
    first, second = (
        RowCounts(
            system_id="1", tables=(TableRows(database="app", table="same", rows=5, digest=digest),)
        )
        for digest in "xy"
    )
    assert [change.is_loss for change in changes(first, second)] == [None]
    assert changes(first, counts(same=5)) == ()


def test_counts_are_kept_in_a_new_file_or_refused_before_anything_is_counted(
    tmp_path: Path,
) -> None:
    check_new(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"old\.json: is there already"):
        check_new(tmp_path / "old.json")
    with pytest.raises(ConfigError, match="no file can be made"):
        check_new(tmp_path / "nowhere" / "new.json")


def test_what_amcheck_looks_at_is_bounded_by_pages_on_the_disk() -> None:
    app = database(
        "app",
        relation(20_000, pages=10),
        relation(20_001, pages=3),
        relation(20_002, pages=4, temporary=True),
        relation(20_003, pages=90),
    )
    assert [one.oid for one in smallest(app, 13)] == [20_001, 20_000]
    assert [one.oid for one in smallest(app, 12)] == [20_001]
    assert smallest(app, 2) == []


def test_a_file_that_is_no_row_counts_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"tables": 5}')
    with pytest.raises(ConfigError, match=r"odd\.json"):
        read_counts(tmp_path / "odd.json")


def test_ages_are_checked_in_every_database_and_relation() -> None:
    seen = snapshot(
        database("app", relation(20_000)),
        database("late", relation(20_000, OLD), xid_age=5),
        template0(OLD),
    )
    checks = {check.name: check.ok for check in check_ages(seen, Policy())}
    assert checks == {
        "age of app": True,
        "age of late": False,
        "age of template0": False,
        "member space": True,
    }


def test_consent_is_a_kind_by_name_and_silence_is_none() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD)),
            prepared=(prepared(),),
            slots=(slot("old", xmin_age=OLD),),
        ),
        Policy(),
    )
    finish, drop = plan.steps[:2]
    assert (finish.kind, drop.kind) == (StepKind.FINISH_PREPARED, StepKind.DROP_SLOT)
    confirm = confirm_by(frozenset({"prepared-rollback"}), None)
    chosen = asyncio.run(_confirm(confirm, finish))
    assert chosen is Consent.PREPARED_ROLLBACK
    assert asyncio.run(_confirm(confirm, drop)) is None


async def _confirm(confirm: object, step: object) -> Consent | None:
    choice = await confirm(step)  # type: ignore[operator]
    return None if choice is None else choice.consent


def test_a_plan_names_large_tables_and_counts_catalogs() -> None:
    relations = [relation(number, OLD, pages=1) for number in range(1000, 1100)]
    relations += [relation(number, OLD, pages=number) for number in range(20_000, 20_030)]
    plan = make_plan(snapshot(database("app", *relations)), Policy(last_stage=1))
    lines = plan_text(plan).splitlines()
    assert "  vacuum: 100 catalogs of app (800 KiB)" in lines
    assert sum("app.public.t200" in line for line in lines) == 20
    assert any(line.startswith("  vacuum: 10 smaller ones") for line in lines)


def test_a_plan_is_told_with_its_reasons_and_is_whole_as_json() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD, name="evil\x1b[2J")), prepared=(prepared(),)
        ),
        Policy(maintenance=True),
    )
    text = plan_text(plan)
    assert "stage 1, bring writes back" in text
    assert "COMMIT PREPARED 'transfer'" in text
    assert "loses everything it wrote" in text
    assert "prepared-commit, prepared-rollback" in text
    assert "wait in its journal" in text
    assert "\x1b" not in text
    told = plan_json(plan)
    assert [step["key"] for step in told["steps"]] == [step.key for step in plan.steps]
    assert told["steps"][1]["statements"] == list(plan.steps[1].statements)


def test_consent_to_both_ends_of_a_prepared_transaction_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("--yes", "prepared-commit", "--yes", "prepared-rollback")
    assert main(["db", "run", "--execute", "--data-dir", str(tmp_path), *both]) == 2
    assert "prepared-commit and --yes prepared-rollback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last_stage", "share", "ok"),
    [(1, 0.6, False), (1, 0.4, True), (2, 0.4, False), (2, 0.2, True)],
)
def test_member_space_is_measured_by_the_share_of_the_last_stage(
    last_stage: int, share: float, *, ok: bool
) -> None:
    used = MemberSpace(used=int(share * MEMBERS_MAX), next_offset=0)
    seen = snapshot(database("app", relation(20_000)), members=used)
    checks = {one.name: one.ok for one in check_ages(seen, Policy(last_stage=last_stage))}
    assert checks["member space"] is ok


def test_counts_of_two_clusters_are_not_compared() -> None:
    with pytest.raises(ConfigError, match="cluster 1, and this is 2"):
        changes(RowCounts(system_id="1", tables=()), RowCounts(system_id="2", tables=()))


def test_a_folder_of_the_same_path_here_is_not_taken_for_a_servers_elsewhere(
    tmp_path: Path,
) -> None:
    assert not disk_floor.is_folder_of(tmp_path, 1_000_000.4)
    (tmp_path / "postmaster.pid").write_text("4711\n/data\n1000000\n5432\n")
    assert disk_floor.is_folder_of(tmp_path, 1_000_000.4)
    assert not disk_floor.is_folder_of(tmp_path, 1_000_100.0)


def test_wal_is_estimated_as_a_runs_own_sessions_write_it() -> None:
    old = database("app", relation(20_000, OLD))
    plain = sum(step.wal_bytes for step in make_plan(snapshot(old), Policy()).steps)
    packed = sum(step.wal_bytes for step in make_plan(snapshot(old, has_lz4=True), Policy()).steps)
    poor = snapshot(old, has_lz4=True, superuser=False)
    assert packed < plain / 5
    assert sum(step.wal_bytes for step in make_plan(poor, Policy()).steps) == plain


async def test_a_question_at_the_terminal_is_answered_or_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyboard, terminal = os.openpty()
    threads_before = set(threading.enumerate())
    (step,) = make_plan(
        snapshot(database("app"), slots=(slot("s", xmin_age=OLD),)), Policy()
    ).stage(1)[:1]
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        confirm = confirm_by(frozenset(), TerminalReport().ask)
        for typed, consent in ((b"slot\n", Consent.SLOT), (b"yes\n", None)):
            os.write(keyboard, typed)
            choice = await confirm(step)
            assert (choice.consent if choice else None) == consent
        asked = asyncio.ensure_future(confirm(step))
        await asyncio.sleep(0)
        asked.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await asked
        # No thread is left that reads what is typed next, or keeps the process from ending.
        assert set(threading.enumerate()) <= threads_before
    os.close(keyboard)


def test_a_plan_says_why_an_orphan_is_left_out_in_the_stop_and_what_would_drop_it() -> None:
    orphan = relation(20_000, OLD, schema="pg_temp_5", temporary=True)
    app = database("app", orphan, temp_namespaces=(TempNamespace(name="pg_temp_5", owners=()),))
    told = " ".join(plan_text(make_plan(snapshot(app), Policy())).split())
    assert "app.pg_temp_5.t20000" in told
    assert "run this again with --single-user" in told


def test_names_are_shown_whole() -> None:
    names = [f"{'n' * 62}{end}" for end in "ab"]
    stopped = snapshot(
        *(database(name, relation(20_000, OLD)) for name in names), settings=SETTINGS
    )
    status = status_of(stopped, blockers(stopped), rate=None, daily_rate=None)
    told = status_text(status, None, "", [])
    for name in names:
        assert f"\n{name}\n" in told
        assert f"old database: database {name}," in told


@pytest.mark.parametrize(
    ("rows", "words"), [(0, "1 row fewer"), (2, "1 row more:"), (3, "2 rows more:")]
)
def test_one_row_is_told_as_one(rows: int, words: str) -> None:
    def counts(rows: int) -> RowCounts:
        return RowCounts(
            system_id="1", tables=(TableRows(database="app", table="t", rows=rows, digest=None),)
        )

    (change,) = changes(counts(1), counts(rows))
    assert change.words.startswith(words)
