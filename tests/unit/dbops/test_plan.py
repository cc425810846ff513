"""A plan is decided from a snapshot: what is in it, in which order, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from appliance.dbops.blockers.blockers import due_age
from appliance.dbops.blockers.obstacles import locks
from appliance.dbops.limits import ID_SPACE, STOP_AGE
from appliance.dbops.plan.history import History, Pin, RelationKey
from appliance.dbops.plan.plan import Plan, make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent, Step, StepKind
from appliance.dbops.repair.run import Outcome
from appliance.dbops.snapshot.missing import Missing
from appliance.dbops.snapshot.snapshot import MemberSpace, RelationKind, Standby
from appliance.errors import ConfigError
from tests.snapshot_builder import (
    OLD,
    TAKEN_AT,
    YOUNG,
    database,
    idle_in_transaction,
    lock,
    prepared,
    relation,
    session,
    slot,
    snapshot,
    standby,
    temp_namespace,
    template0,
    temporary,
)

POLICY = Policy()
MIDDLE = 700_000_000
"""Older than autovacuum lets a table become, and far from the stop."""


def of_kind(plan: Plan, kind: StepKind) -> list[Step]:
    return [step for step in plan.steps if step.kind is kind]


def the(plan: Plan, kind: StepKind) -> Step:
    (step,) = of_kind(plan, kind)
    return step


def keys(plan: Plan) -> list[str]:
    return [step.key for step in plan.steps]


def consents(step: Step) -> list[Consent]:
    return [choice.consent for choice in step.choices]


def test_a_healthy_cluster_needs_nothing() -> None:
    plan = make_plan(snapshot(database("app", relation(20_000)), template0()), POLICY)
    assert plan.steps == ()
    assert plan.next_stage is None


def test_only_what_holds_the_horizon_back_is_frozen_to_bring_writes_back() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD), relation(20_001), relation(20_002, MIDDLE)),
            database("other", relation(20_000, 3_000_000)),
        ),
        POLICY,
    )
    first = [step for step in plan.stage(1) if step.kind is StepKind.VACUUM]
    assert [step.object for step in first] == ["app.public.t20000"]
    second = [step for step in plan.stage(2) if step.kind is StepKind.VACUUM]
    assert [step.object for step in second] == ["app.public.t20002"]
    assert {step.object for step in plan.stage(3)} == {"app.public.t20000", "app.public.t20002"}


def test_catalogs_go_first_then_the_oldest_then_the_smallest() -> None:
    large = relation(20_000, OLD, pages=9000)
    plan = make_plan(
        snapshot(
            database(
                "app",
                large,
                relation(20_001, OLD - 1_000_000, pages=10),  # as old as the oldest, nearly
                relation(20_002, OLD - 50_000_000, pages=1),
                relation(1259, OLD - 50_000_000, pages=500),
            )
        ),
        POLICY,
    )
    assert [step.relation_oid for step in of_kind(plan, StepKind.VACUUM)] == [
        1259,
        20_001,
        20_000,
        20_002,
    ]


@pytest.mark.parametrize(
    ("version", "only", "expected"),
    [
        (150018, "", "INDEX_CLEANUP OFF, TRUNCATE OFF, PROCESS_TOAST OFF, PARALLEL 0"),
        (
            180006,
            "ONLY ",
            "INDEX_CLEANUP OFF, TRUNCATE OFF, PROCESS_TOAST OFF, PARALLEL 0, SKIP_DATABASE_STATS, "
            "BUFFER_USAGE_LIMIT 0",
        ),
    ],
)
def test_a_vacuum_says_what_its_version_understands(version: int, only: str, expected: str) -> None:
    odd = relation(20_000, OLD, name='odd"name')
    plan = make_plan(snapshot(database("app", odd), version=version), POLICY)
    step = the(plan, StepKind.VACUUM)
    assert step.statements == (f'VACUUM ({expected}) {only}"public"."odd""name"',)
    assert step.settings["vacuum_freeze_table_age"] == "0"
    assert step.settings["vacuum_multixact_freeze_min_age"] == "5000000"
    assert step.settings["vacuum_cost_delay"] == "0"
    refresh = the(plan, StepKind.REFRESH).statements
    assert refresh == (
        ("VACUUM (ONLY_DATABASE_STATS)",)
        if version >= 160000
        else ("VACUUM (INDEX_CLEANUP OFF, TRUNCATE OFF) pg_catalog.pg_am",)
    )


def test_toast_is_frozen_by_its_own_name_and_repaired_without_analyze() -> None:
    toast = relation(20_001, OLD, kind=RelationKind.TOAST, schema="pg_toast", toast_owner=20_000)
    plan = make_plan(snapshot(database("app", relation(20_000), toast)), POLICY)
    assert '"pg_toast"."t20001"' in the(plan, StepKind.VACUUM).statements[0]
    assert "ANALYZE" not in the(plan, StepKind.REPAIR).statements[0]


def test_sizes_count_pages_that_are_not_frozen_yet_and_times_follow_the_rate() -> None:
    table = relation(20_000, OLD, pages=1_000_000, pages_all_frozen=900_000)
    seen = snapshot(database("app", table))
    step = the(make_plan(seen, POLICY), StepKind.VACUUM)
    assert step.bytes == 100_000 * 8192
    assert step.wal_bytes == int(step.bytes * 0.93)
    assert step.seconds == pytest.approx(step.bytes / 50e6, rel=0.01)
    measured = make_plan(seen, POLICY, History(rate_bytes_per_s=200e6))
    assert measured.rate_measured
    assert the(measured, StepKind.VACUUM).seconds == pytest.approx(step.bytes / 200e6, rel=0.01)
    lz4 = snapshot(database("app", table), settings={"wal_compression": "lz4"})
    assert the(make_plan(lz4, POLICY), StepKind.VACUUM).wal_bytes == int(step.bytes * 0.15)


def test_a_database_whose_age_has_not_followed_is_only_refreshed() -> None:
    plan = make_plan(snapshot(database("app", relation(20_000), xid_age=OLD)), POLICY)
    assert keys(plan) == ["refresh:1:app", "probe"]
    assert "has not followed" in plan.steps[0].reason


def test_a_database_without_connections_is_left_to_autovacuum_after_all_others() -> None:
    plan = make_plan(
        snapshot(template0(OLD), database("app", relation(20_000, OLD))), Policy(last_stage=1)
    )
    assert keys(plan) == ["vacuum:1:app:20000", "refresh:1:app", "autovacuum:1:template0", "probe"]
    step = the(plan, StepKind.AUTOVACUUM)
    assert dict(step.settings) == {
        "autovacuum": "on",
        "track_counts": "on",
        "autovacuum_naptime": "1s",
    }
    assert not step.destructive
    # It would go to the oldest database, as long as that is another one.
    assert step.needs == ("refresh:1:app",)


def test_autovacuum_is_not_waited_for_where_its_own_settings_keep_it_away() -> None:
    far = {"autovacuum_freeze_max_age": "1000000000"}
    plan = make_plan(snapshot(template0(MIDDLE), settings=far), POLICY)
    assert plan.steps == ()
    assert "autovacuum_freeze_max_age" in plan.notes[0]


def test_a_database_that_is_being_dropped_stops_nobody() -> None:
    gone = database("gone", connectable=False, dropping=True, relations=None, xid_age=OLD)
    plan = make_plan(snapshot(gone, database("app", relation(20_000))), POLICY)
    assert plan.steps == ()


def test_a_session_is_ended_before_what_it_holds_and_only_if_it_is_the_same_one() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD)),
            database("other", relation(20_000, OLD), relation(1260, OLD, shared=True)),
            sessions=(idle_in_transaction(7),),
        ),
        Policy(last_stage=1),
    )
    ends = plan.steps[0]
    assert ends.kind is StepKind.END_SESSION
    assert consents(ends) == [Consent.SESSION]
    (statement,) = ends.choices[0].statements
    assert "pid = 7 AND xact_start <= '2026-01-02T03:04:05+00:00'" in statement
    needs = {step.object: step.needs for step in of_kind(plan, StepKind.VACUUM)}
    assert needs == {
        "app.public.t20000": ("session:7",),
        "other.public.t20000": (),
        "other.pg_catalog.t1260": ("session:7",),
    }


def test_a_session_of_today_or_our_own_is_not_ended() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(20_000, OLD)),
            sessions=(idle_in_transaction(7, 5000), session(8, own=True, xmin_age=OLD)),
        ),
        POLICY,
    )
    assert of_kind(plan, StepKind.END_SESSION) == []


def test_a_vacuum_that_still_wins_a_lot_does_not_wait_for_the_holder() -> None:
    held = snapshot(
        database("app", relation(20_000, OLD)), sessions=(idle_in_transaction(7, OLD - 60_000_000),)
    )
    assert the(make_plan(held, POLICY), StepKind.VACUUM).needs == ()


def test_a_prepared_transaction_has_two_ends_and_no_default() -> None:
    plan = make_plan(
        snapshot(database("app", relation(20_000, OLD)), prepared=(prepared("it's"),)), POLICY
    )
    step = the(plan, StepKind.FINISH_PREPARED)
    assert step.database == "app"
    assert consents(step) == [Consent.PREPARED_COMMIT, Consent.PREPARED_ROLLBACK]
    assert step.choices[0].statements == ("COMMIT PREPARED 'it''s'",)
    assert the(plan, StepKind.VACUUM).needs == (step.key,)


def test_a_logical_slot_holds_catalogs_alone_and_a_physical_one_everything() -> None:
    relations = (relation(20_000, OLD), relation(1259, OLD))
    logical = make_plan(
        snapshot(database("app", *relations), slots=(slot("cdc", catalog_xmin_age=OLD),)), POLICY
    )
    assert {step.relation_oid: step.needs for step in of_kind(logical, StepKind.VACUUM)} == {
        1259: ("slot:cdc",),
        20_000: (),
    }
    physical = make_plan(
        snapshot(database("app", *relations), slots=(slot("old", xmin_age=OLD),)), POLICY
    )
    assert all(step.needs == ("slot:old",) for step in of_kind(physical, StepKind.VACUUM))
    assert consents(the(physical, StepKind.DROP_SLOT)) == [Consent.SLOT]


def test_a_slot_that_holds_rows_and_catalogs_is_dropped_once() -> None:
    both = slot("both", xmin_age=OLD, catalog_xmin_age=OLD)
    plan = make_plan(snapshot(database("app", relation(1259, OLD)), slots=(both,)), POLICY)
    assert the(plan, StepKind.DROP_SLOT).key == "slot:both"
    assert the(plan, StepKind.VACUUM).needs == ("slot:both",)


def test_a_standby_is_cut_off_only_with_consent() -> None:
    plan = make_plan(
        snapshot(database("app", relation(20_000, OLD)), standbys=(standby(9),)), POLICY
    )
    step = the(plan, StepKind.END_STANDBY)
    assert consents(step) == [Consent.STANDBY]
    assert "hot_standby_feedback" in step.choices[0].loses


def test_a_lock_of_hours_is_ended_and_one_of_a_moment_is_waited_for() -> None:
    app = database("app", relation(20_000, OLD), relation(20_001, OLD))
    plan = make_plan(
        snapshot(
            app,
            sessions=(session(7, transaction_s=7200.0), session(8, transaction_s=0.5)),
            locks=(lock(20_000, 7, database_oid=app.oid), lock(20_001, 8, database_oid=app.oid)),
        ),
        POLICY,
    )
    step = the(plan, StepKind.END_SESSION)
    assert (step.pid, consents(step)) == (7, [Consent.LOCK])


def test_an_autovacuum_that_has_the_table_gives_way_unasked() -> None:
    app = database("app", relation(20_000, OLD))
    worker = session(7, backend="autovacuum worker", transaction_s=1.0, vacuuming=True)
    plan = make_plan(
        snapshot(app, sessions=(worker,), locks=(lock(20_000, 7, database_oid=app.oid),)), POLICY
    )
    assert not the(plan, StepKind.END_SESSION).destructive


def test_a_prepared_transaction_that_holds_a_lock_is_finished_however_young_it_is() -> None:
    app = database("app", relation(20_000, OLD))
    held = replace(lock(20_000, 0, database_oid=app.oid), pid=None, gid="transfer")
    plan = make_plan(snapshot(app, prepared=(prepared(age=5),), locks=(held,)), POLICY)
    step = the(plan, StepKind.FINISH_PREPARED)
    assert "AccessExclusiveLock on app.public.t20000" in step.reason
    assert consents(step) == [Consent.PREPARED_COMMIT, Consent.PREPARED_ROLLBACK]


def test_in_the_stop_repairs_follow_a_first_stage_or_wait() -> None:
    seen = snapshot(database("app", relation(20_000, OLD)))
    settled = frozenset({"vacuum:1:app:20000", "refresh:1:app"})
    assert make_plan(seen, POLICY, History(settled=settled)).steps == ()
    assert make_plan(seen, POLICY).stage(3)


def test_a_row_that_vacuum_refuses_is_frozen_by_force_only_by_name() -> None:
    past = History(bad_rows=frozenset({RelationKey(database="app", oid=20_000)}))
    extensions = {"amcheck": "tools", "pg_surgery": "public"}
    app = database("app", relation(20_000, OLD), extensions=extensions)
    plan = make_plan(snapshot(app), POLICY, past)
    step = the(plan, StepKind.FREEZE_ROWS)
    assert consents(step) == [Consent.FREEZE_BAD_ROWS]
    statement = step.choices[0].statements[0]
    assert '"tools"."verify_heapam"(\'"public"."t20000"\'::regclass, false, false,' in statement
    assert '"public"."heap_force_freeze"(' in statement
    assert step.choices[0].statements[1].startswith("VACUUM")
    assert of_kind(plan, StepKind.VACUUM) == []


def test_without_the_extensions_for_it_such_a_row_is_for_a_person() -> None:
    past = History(bad_rows=frozenset({RelationKey(database="app", oid=20_000)}))
    app = database("app", relation(20_000, OLD), extensions={"amcheck": "public"})
    assert (
        "CREATE EXTENSION pg_surgery"
        in the(make_plan(snapshot(app), POLICY, past), StepKind.ASK).reason
    )


def test_a_standby_that_is_ended_is_known_by_name_to_be_kept_out() -> None:
    plan = make_plan(
        snapshot(database("app", relation(20_000, OLD)), standbys=(standby(9),)), POLICY
    )
    step = the(plan, StepKind.END_STANDBY)
    assert (step.application, step.xid_age_max) == ("standby", POLICY.stage1_age)


def test_a_lock_on_a_table_that_is_young_concerns_nobody() -> None:
    app = database("app", relation(20_000, OLD), relation(20_001))
    plan = make_plan(
        snapshot(
            app,
            sessions=(session(7, transaction_s=7200.0),),
            locks=(lock(20_001, 7, database_oid=app.oid),),
        ),
        POLICY,
    )
    assert of_kind(plan, StepKind.END_SESSION) == []


def orphan(age: int) -> Plan:
    app = database("app", temporary(20_000, age), temp_namespaces=(temp_namespace(),))
    return make_plan(snapshot(app), POLICY)


def test_an_orphan_is_dropped_by_connecting_while_there_are_ids() -> None:
    step = the(orphan(STOP_AGE - 1000), StepKind.DROP_TEMP)
    assert consents(step) == [Consent.TEMP_TABLE]
    assert step.choices[0].statements == ('DROP TABLE "pg_temp_3"."t20000" CASCADE',)


def test_in_the_stop_an_orphan_is_a_persons_unless_single_user_mode_was_asked_for() -> None:
    step = the(orphan(STOP_AGE), StepKind.ASK)
    assert "--single-user" in step.reason
    app = database("app", temporary(20_000), temp_namespaces=(temp_namespace(),))
    plan = make_plan(snapshot(app), Policy(single_user=True))
    offline = the(plan, StepKind.DROP_TEMP_OFFLINE)
    assert consents(offline) == [Consent.SINGLE_USER]
    assert "stopped and started" in offline.choices[0].loses


def test_the_owner_of_an_old_temporary_table_is_not_ended_in_the_stop() -> None:
    def plan(age: int, policy: Policy = POLICY) -> Plan:
        app = database("app", temporary(20_000, age), temp_namespaces=(temp_namespace(7),))
        # It is idle in a transaction too: its own step, and not the horizon's, says what happens.
        return make_plan(snapshot(app, sessions=(idle_in_transaction(7),)), policy)

    step = the(plan(STOP_AGE), StepKind.ASK)
    assert "VACUUM itself" in step.reason
    assert {one.kind for one in plan(STOP_AGE).steps} & {
        StepKind.END_SESSION,
        StepKind.END_OWNER,
    } == set()
    assert consents(the(plan(STOP_AGE - 1000), StepKind.END_OWNER)) == [Consent.SESSION]
    asked = plan(STOP_AGE, Policy(single_user=True))
    assert consents(the(asked, StepKind.END_OWNER)) == [Consent.SESSION]


def test_old_multixacts_are_frozen_though_every_xid_is_young() -> None:
    table = relation(20_000, mxid_age=STOP_AGE)
    plan = make_plan(snapshot(database("app", table), sessions=(idle_in_transaction(7),)), POLICY)
    step = the(plan, StepKind.VACUUM)
    assert step.stage == 1
    assert "MXIDs" in step.reason
    assert step.needs == ()


def test_member_space_is_freed_from_the_older_half_of_the_multixacts() -> None:
    full = MemberSpace(used=ID_SPACE - 2 * 52_352, next_offset=0)
    app = database("app", relation(20_000, mxid_age=57_000), relation(20_001, mxid_age=10_000))
    plan = make_plan(snapshot(app, template0(mxid_age=57_000), members=full), POLICY)
    first = [step for step in plan.stage(1) if step.kind is StepKind.VACUUM]
    assert [step.relation_oid for step in first] == [20_000]
    assert first[0].settings["vacuum_multixact_freeze_min_age"] == "0"
    assert the(plan, StepKind.AUTOVACUUM).object == "database template0"


def test_a_damaged_table_is_set_apart_and_its_pages_given_up_only_by_name() -> None:
    seen = snapshot(database("app", relation(20_000, OLD), relation(20_001, OLD)))
    past = History(damaged=frozenset({RelationKey(database="app", oid=20_000)}))
    plan = make_plan(seen, POLICY, past)
    assert the(plan, StepKind.VACUUM).relation_oid == 20_001
    step = the(plan, StepKind.ZERO_PAGES)
    assert consents(step) == [Consent.ZERO_DAMAGED_PAGES]
    assert "zero_damaged_pages" not in step.settings  # It would change nothing on the disk.
    assert "every row on the damaged pages" in step.choices[0].loses
    assert all("zero_damaged_pages" not in other.settings for other in plan.steps if other != step)


def test_what_gives_pages_up_is_of_stage_1_whatever_its_age_and_says_what_toast_loses() -> None:
    toast = relation(20_001, MIDDLE, kind=RelationKind.TOAST, toast_owner=20_000)
    seen = snapshot(database("app", relation(20_000, MIDDLE), toast))
    places = (RelationKey(database="app", oid=20_000), RelationKey(database="app", oid=20_001))
    plan = make_plan(seen, Policy(maintenance=True), History(damaged=frozenset(places)))
    table, chunks = of_kind(plan, StepKind.ZERO_PAGES)
    assert (table.stage, chunks.stage, plan.maintenance) == (1, 1, True)
    assert "missing chunk" in chunks.choices[0].loses
    assert "missing chunk" not in table.choices[0].loses


def test_what_pages_were_given_up_of_gets_new_indexes_while_the_server_does_not_write() -> None:
    place = RelationKey(database="app", oid=20_000)
    past = History(given_up=frozenset({place}), bad_indexes=frozenset({place}))
    app = database("app", relation(20_000), relation(20_001, MIDDLE))
    plan = make_plan(snapshot(app), Policy(maintenance=True), past)
    assert keys(plan)[:2] == ["probe", "reindex:app:20000"]
    assert [step.stage for step in plan.steps][:3] == [1, 1, 2]
    assert plan.maintenance
    assert "another one in their place" in plan.steps[1].reason
    stopped = database("app", relation(20_000), relation(20_001, OLD))
    assert of_kind(make_plan(snapshot(stopped), POLICY, past), StepKind.REINDEX) == []
    settled = frozenset({"reindex:app:20000"})
    assert (
        make_plan(
            snapshot(database("app", relation(20_000))), POLICY, replace(past, settled=settled)
        ).stage(1)
        == ()
    )


def test_a_damaged_index_is_built_again_before_it_is_cleaned_up() -> None:
    place = RelationKey(database="app", oid=20_000)
    past = History(frozen=frozenset({place}), bad_indexes=frozenset({place}))
    plan = make_plan(snapshot(database("app", relation(20_000))), POLICY, past)
    assert [step.kind for step in plan.steps] == [StepKind.REINDEX, StepKind.REPAIR]
    assert plan.steps[0].statements == ('REINDEX TABLE CONCURRENTLY "public"."t20000"',)


def test_what_is_settled_is_not_planned_again_and_a_probe_alone_is_no_plan() -> None:
    seen = snapshot(database("app", relation(20_000, OLD)))
    settled = frozenset({"vacuum:1:app:20000", "refresh:1:app", "repair:app:20000"})
    assert make_plan(seen, POLICY, History(settled=settled)).steps == ()


def test_maintenance_mode_lasts_as_long_as_stage_1_and_only_where_there_is_a_server() -> None:
    policy = Policy(maintenance=True)
    assert make_plan(snapshot(database("app", relation(20_000, OLD))), policy).maintenance
    assert not make_plan(snapshot(database("app", relation(20_000, MIDDLE))), policy).maintenance
    assert not make_plan(snapshot(database("app", relation(20_000, OLD))), POLICY).maintenance


def test_the_last_stage_ends_the_plan() -> None:
    seen = snapshot(database("app", relation(20_000, OLD), relation(20_001, MIDDLE)))
    for last in (1, 2, 3):
        plan = make_plan(seen, Policy(last_stage=last))
        assert {step.stage for step in plan.steps} == set(range(1, last + 1))


def test_a_policy_names_the_number_and_its_range() -> None:
    with pytest.raises(ConfigError, match=r"workers: 3 is not from 1 to 2"):
        Policy(workers=3)
    with pytest.raises(ConfigError, match="headroom: 3000000"):
        Policy(headroom=3_000_000)
    with pytest.raises(ConfigError, match="members_share_last"):
        Policy(members_share_first=0.2, members_share_last=0.3)


def test_parts_that_could_not_be_read_are_told() -> None:
    plan = make_plan(snapshot(database("app", relation(20_000)), superuser=False), POLICY)
    assert "no superuser" in plan.notes[0]
    assert POLICY.stage1_age > YOUNG


def test_an_old_database_that_could_not_be_read_is_a_persons_and_keeps_a_run_from_its_end() -> None:
    closed = database("shut", relations=None, temp_namespaces=None, xid_age=OLD)
    missing = (Missing(part="relations", database="shut", reason="no access"),)
    plan = make_plan(snapshot(closed, template0(OLD), missing=missing), POLICY)
    step = the(plan, StepKind.ASK)
    assert (step.stage, step.object) == (1, "database shut")
    assert "(no access)" in step.reason
    # Autovacuum goes to the oldest database, and that may be this one.
    assert the(plan, StepKind.AUTOVACUUM).needs == (step.key,)
    assert not Outcome(ended=(), left=plan, stopped=None).is_complete
    young = database("shut", relations=None, temp_namespaces=None)
    assert make_plan(snapshot(young, missing=missing), POLICY).steps == ()


@pytest.mark.parametrize(
    ("mode", "ended"), [("AccessExclusiveLock", [7]), ("ShareUpdateExclusiveLock", [])]
)
def test_who_waits_for_a_stronger_lock_delays_a_vacuum_as_its_holder_does(
    mode: str, ended: list[int]
) -> None:
    app = database("app", relation(20_000, OLD))
    waiting = replace(lock(20_000, 7, database_oid=app.oid), mode=mode, granted=False)
    seen = snapshot(app, sessions=(session(7, transaction_s=7200.0),), locks=(waiting,))
    steps = of_kind(make_plan(seen, POLICY), StepKind.END_SESSION)
    assert [step.pid for step in steps] == ended
    assert all("waits for AccessExclusiveLock" in step.reason for step in steps)
    told = [one.pid for one in locks(seen, due_age(seen))]
    assert told == ended


def test_the_catalogs_of_one_database_are_frozen_before_a_worker_moves_to_the_next() -> None:
    plan = make_plan(
        snapshot(
            database("app", relation(1259, OLD, pages=500), relation(1247, OLD, pages=5)),
            database("other", relation(1259, OLD, pages=50)),
        ),
        POLICY,
    )
    frozen = [(step.database, step.relation_oid) for step in of_kind(plan, StepKind.VACUUM)]
    assert frozen == [("app", 1247), ("app", 1259), ("other", 1259)]


def test_a_standby_is_kept_out_only_where_no_other_has_its_name_and_address() -> None:
    def kept_out(*standbys: Standby) -> list[tuple[str | None, str | None]]:
        seen = snapshot(database("app", relation(20_000, OLD)), standbys=standbys)
        ends = of_kind(make_plan(seen, POLICY), StepKind.END_STANDBY)
        return [(step.application, step.client) for step in ends]

    near, far = replace(standby(9), client="10.0.0.8"), replace(standby(10, 5), client="10.0.0.9")
    assert kept_out(near, far) == [("standby", "10.0.0.8")]
    assert kept_out(near, replace(far, client="10.0.0.8")) == [(None, None)]


def test_whoever_may_have_a_page_in_use_is_a_choice_until_his_transaction_has_ended() -> None:
    begun = TAKEN_AT - timedelta(seconds=500)
    place = RelationKey(database="app", oid=20_000)
    past = History(pins=frozenset({Pin(place=place, pid=7, begun=begun)}))

    def asked(transaction_s: float | None) -> list[Step]:
        seen = snapshot(
            database("app", relation(20_000, OLD)),
            sessions=(session(7, transaction_s=transaction_s),),
        )
        return of_kind(make_plan(seen, POLICY, past), StepKind.END_SESSION)

    (step,) = asked(500.0)
    assert (step.key, step.stage, consents(step)) == ("lock:7", 1, [Consent.LOCK])
    assert "app.public.t20000" in step.reason
    assert begun.isoformat() in step.choices[0].statements[0]
    assert asked(10.0) == []
    assert asked(None) == []


def test_a_table_whose_file_is_missing_is_for_a_person_and_no_other_waits_for_it() -> None:
    past = History(without_file=frozenset({RelationKey(database="app", oid=20_000)}))
    seen = snapshot(database("app", relation(20_000, OLD), relation(20_001, OLD)))
    plan = make_plan(seen, POLICY, past)
    assert "missing" in the(plan, StepKind.ASK).reason
    assert [step.relation_oid for step in of_kind(plan, StepKind.VACUUM)] == [20_001]
