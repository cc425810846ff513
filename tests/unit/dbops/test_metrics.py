"""What Prometheus is told, and that the alert rules ask for nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from appliance.dbops.limits import STOP_AGE, Stage
from appliance.dbops.monitoring.backups import Backups
from appliance.dbops.monitoring.metrics import alert_rules, exposition
from appliance.dbops.snapshot.snapshot import MemberSpace, Snapshot
from tests.unit.dbops.clusters import (
    database,
    prepared,
    session,
    slot,
    snapshot,
    standby,
    template0,
)

SECRET = "SELECT 'a secret'"
BUSY = snapshot(
    databases=(database(), template0(xid_age=STOP_AGE)),
    sessions=(session(xmin_age=7, query=SECRET, user="mallory", client="10.9.9.9"),),
    prepared=(prepared(gid="secret gid", xid_age=11),),
    slots=(slot(name="secret_slot", catalog_xmin_age=13),),
    standbys=(standby(xmin_age=17),),
)


def samples(cluster: Snapshot | None) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition(cluster))
        for sample in family.samples
    }


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(alert_rules())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_database_and_every_kind_of_holder_is_told() -> None:
    told = samples(BUSY)
    assert told["appliance_db_xids_left", ("template0",)] == 0
    assert told["appliance_db_xids_left", ("app",)] == STOP_AGE - 1000
    assert told["appliance_db_stage", ("xids",)] == Stage.STOPPED
    assert told["appliance_db_stage", ("mxids",)] == Stage.OK
    assert told["appliance_db_xids_total", ()] == BUSY.next_xid
    holders = {
        labels[0]: value for (name, labels), value in told.items() if name.endswith("horizon_age")
    }
    assert holders == {
        "idle_in_transaction": 0,
        "long_transaction": 7,
        "prepared_transaction": 11,
        "standby_feedback": 17,
        "physical_slot": 0,
        "logical_slot": 13,
    }


@pytest.mark.parametrize("text", ["secret", "mallory", "10.9.9.9"])
def test_no_text_of_a_session_is_told(text: str) -> None:
    assert text not in exposition(BUSY)


def test_a_database_that_cannot_be_asked_is_down_and_nothing_else() -> None:
    assert samples(None) == {("appliance_db_up", ()): 0.0}


def test_the_member_space_is_left_out_where_it_is_not_known() -> None:
    told = samples(snapshot(members=None))
    assert not any("members" in name or "members" in labels for name, labels in told)


def test_every_stage_has_an_alert() -> None:
    expressions = {str(rule["expr"]) for rule in rules()}
    for stage in Stage:
        if stage != Stage.OK:
            assert f"appliance_db_stage >= {stage.value}" in expressions


def test_the_age_of_the_newest_backup_counts_from_the_cluster_s_making_where_there_is_none() -> (
    None
):
    made = 1_700_000_000
    cluster = snapshot(system_id=str(made << 32 | 12345))
    name = "appliance_db_backup_timestamp_seconds"

    def told(backups: Backups | None) -> float | None:
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(exposition(cluster, backups))
            for sample in family.samples
        }.get(name)

    assert told(None) is None
    assert told(Backups(newest_at=None)) == made
    assert told(Backups(newest_at=datetime.fromtimestamp(made + 9, UTC))) == made + 9


def test_a_stage_of_members_is_told_once_they_are_known() -> None:
    full = snapshot(members=MemberSpace(used=4_294_958_080, next_offset=0))
    assert samples(full)["appliance_db_stage", ("members",)] == Stage.STOPPED
