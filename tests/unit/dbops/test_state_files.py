"""Files that commands have left for the next ones: whatever stands in them, it is told or used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.dbops.monitoring.samples import FILE_NAME as SAMPLES_NAME
from appliance.dbops.monitoring.samples import read_samples, with_sample
from appliance.dbops.repair.row_counts import RowCounts, TableRows, changes, read_counts
from appliance.dbops.repair.run_journal import FILE_NAME as REPAIRS_NAME
from appliance.dbops.repair.run_journal import RunJournal, past_history
from appliance.dbops.snapshot.rates import Sample, newest_and_daily_rate
from appliance.errors import ApplianceError

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    "x",
    [],
    {},
    [1],
    {"a": 1},
    float("nan"),
    10**400,
    "\ud800",
)
NOW = Sample(
    system_id="1", at_s=1e9 + 3000, next_xid=99, next_mxid=9, next_member=4, wal_position=99
)
SAMPLES = [
    {
        "system_id": "1",
        "at_s": 1e9 + place * 900,
        "next_xid": place,
        "next_mxid": 5,
        "next_member": 2,
        "wal_position": 7,
    }
    for place in range(2)
]
_STEP = {"system_id": "1", "database": "app", "relation_oid": 5, "kind": "vacuum"}
REPAIRS = [
    {"event": "started", **_STEP},
    {"event": "ended", **_STEP, "state": "done", "bytes": 1 << 25, "seconds": 2.0},
    {"event": "settings_changed", "system_id": "1", "before": {"autovacuum_naptime": None}},
    {"event": "finished", "system_id": "1"},
]
TABLE = {"database": "a", "table": "t", "rows": 4, "digest": "7", "fault": None}
AFTER = RowCounts(system_id="1", tables=(TableRows(database="a", table="t", rows=5, digest="8"),))


def use_samples(folder: Path) -> None:
    kept = with_sample(read_samples(folder), NOW)
    for rate in newest_and_daily_rate(kept, NOW):
        if rate is not None:
            f"{rate.xids_per_s:,.0f} {rate.members_per_s or 0:,.0f}".strip()


def use_repairs(folder: Path) -> None:
    past_history(folder, "1")
    journal = RunJournal(folder, "1")
    try:
        assert journal.unfinished is not None
        journal.history()
        journal.settings_to_restore()
    finally:
        journal.close()


def use_counts(folder: Path) -> None:
    changes(read_counts(folder / "counts"), AFTER)


def as_lines(records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("name", "written", "content", "use"),
    [
        (SAMPLES_NAME, json.dumps, SAMPLES, use_samples),
        (REPAIRS_NAME, as_lines, REPAIRS, use_repairs),
        ("counts", json.dumps, {"system_id": "1", "tables": [TABLE]}, use_counts),
    ],
)
def test_whatever_a_field_holds_it_is_used_or_told(
    tmp_path: Path,
    name: str,
    written: Callable[[Any], str],
    content: Any,
    use: Callable[[Path], None],
) -> None:
    path = tmp_path / name
    path.write_text(written(content))
    use(tmp_path)
    refused = 0
    for odd in varied(content):
        path.write_text(written(odd))
        try:
            use(tmp_path)
        except (ApplianceError, ValueError) as error:
            assert name in str(error)  # noqa: PT017 (what is asked is which errors there may be)
            refused += 1
    assert refused > 20
    path.write_text("[" * 200_000 + "\n")
    with pytest.raises((ApplianceError, ValueError), match=name):
        use(tmp_path)


def varied(content: Any) -> Iterator[Any]:
    """The content with each of its parts replaced by each odd one, or left out."""
    for place in places(content):
        for odd in ODD:
            yield changed(content, place, odd)
        yield changed(content, place, None, is_gone=True)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*above, key)
        if isinstance(part, dict | list):
            yield from places(part, (*above, key))


def changed(content: Any, place: tuple[Any, ...], odd: Any, *, is_gone: bool = False) -> Any:
    whole = json.loads(json.dumps(content))
    part = whole
    for key in place[:-1]:
        part = part[key]
    if is_gone:
        del part[place[-1]]
    else:
        part[place[-1]] = odd
    return whole
