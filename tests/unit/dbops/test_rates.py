"""Rates from samples, and the samples that are kept."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from appliance.dbops.monitoring.samples import (
    FILE_NAME,
    KEPT_MAX,
    KEPT_S,
    SPACING_S,
    read_samples,
    with_sample,
    write_samples,
)
from appliance.dbops.snapshot.rates import (
    Sample,
    days_left,
    newest_and_daily_rate,
    rate_between,
    sample_of,
)
from tests.unit.dbops.clusters import snapshot

FIRST = sample_of(snapshot())


def later(seconds: float, xids: int = 0, **changed: object) -> Sample:
    moved = replace(FIRST, at_s=FIRST.at_s + seconds, next_xid=FIRST.next_xid + xids)
    return replace(moved, **changed)  # type: ignore[arg-type]


def test_a_rate_is_what_was_used_between_two_samples() -> None:
    rate = rate_between(FIRST, later(100, xids=5000, next_mxid=1100, next_member=300))
    assert rate is not None
    assert (rate.xids_per_s, rate.mxids_per_s, rate.members_per_s) == (50.0, 1.0, 2.0)
    assert days_left(4_320_000, rate.xids_per_s) == 1.0


def test_counters_of_32_bits_go_around() -> None:
    near = replace(FIRST, next_mxid=2**32 - 50, next_member=2**32 - 100)
    rate = rate_between(near, later(100, next_mxid=50, next_member=100))
    assert rate is not None
    assert (rate.mxids_per_s, rate.members_per_s) == (1.0, 2.0)


@pytest.mark.parametrize(
    "second",
    [
        later(9.0),
        later(100, system_id="another"),
        later(100, xids=-1),
        later(100, wal_position=FIRST.wal_position - 1),
    ],
)
def test_samples_that_tell_nothing_give_no_rate(second: Sample) -> None:
    assert rate_between(FIRST, second) is None


def test_the_newest_rate_and_the_days_are_told_apart() -> None:
    samples = [later(-100_000), later(0), later(86_000, xids=86_000), later(86_395, xids=999_999)]
    now = later(86_400, xids=126_000)
    newest, daily = newest_and_daily_rate(samples, now)
    assert newest is not None
    assert daily is not None
    # Nothing is measured over the 5 s since the last sample, nor against the one of two days ago.
    assert (newest.over_s, newest.xids_per_s) == (400.0, 100.0)
    assert daily.over_s == 86_400.0
    assert newest_and_daily_rate([], now) == (None, None)


def test_days_left_are_unknown_without_use() -> None:
    assert days_left(100, None) is None
    assert days_left(100, 0.0) is None
    assert days_left(-5, 1.0) == 0.0


def test_samples_are_kept_apart_and_within_bounds() -> None:
    kept: tuple[Sample, ...] = ()
    for minute in range(3000):
        kept = with_sample(kept, later(60.0 * minute, xids=minute))
        assert len(kept) <= KEPT_MAX
    assert kept[-1].at_s == later(60.0 * 2999).at_s
    assert kept[-1].at_s - kept[0].at_s > 86_400
    assert kept[-1].at_s - kept[0].at_s <= KEPT_S
    assert with_sample(kept, later(60.0 * 2999 + SPACING_S - 1)) == kept


def test_another_clusters_samples_are_dropped() -> None:
    other = later(3600, system_id="another")
    assert with_sample((FIRST,), other) == (other,)


def test_samples_survive_the_file_which_belongs_to_its_folder(tmp_path: Path) -> None:
    assert read_samples(tmp_path) == ()
    samples = (FIRST, later(100, next_member=None))
    write_samples(tmp_path, samples)
    assert read_samples(tmp_path) == samples
    status = (tmp_path / FILE_NAME).stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_uid == (tmp_path.stat().st_uid if os.geteuid() == 0 else os.geteuid())


@pytest.mark.parametrize(
    "text", ["", "{", '[{"at": 1}]', "[1]", "7", pytest.param("[" * 200_000, id="nested")]
)
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=r"."):
        read_samples(tmp_path)


@pytest.mark.parametrize("field", ["system_id", "at_s", "next_xid", "next_mxid", "wal_position"])
def test_a_sample_without_a_number_is_told(field: str, tmp_path: Path) -> None:
    changed: dict[str, object] = {field: None}
    (tmp_path / FILE_NAME).write_text(json.dumps([asdict(FIRST) | changed]))
    with pytest.raises(ValueError, match="of another form"):
        read_samples(tmp_path)
