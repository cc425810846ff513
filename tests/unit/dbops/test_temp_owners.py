"""Who owns a schema of temporary tables, where PostgreSQL tells numbers and where it tells an order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from appliance.dbops.snapshot.temp_owners import NumberedProcess, temp_owners

BEGUN = datetime(2026, 11, 30, 3, 0, 0, 700_000, tzinfo=UTC)
APP = 16_384


def process(number: int, **changed: Any) -> NumberedProcess:
    values: dict[str, Any] = {
        "number": number,
        "pid": 100 + number,
        "database_oid": APP,
        "backend": "client backend",
        "started": BEGUN,
        "virtual_number": None,
        "own": False,
    }
    return NumberedProcess(**{**values, **changed})


def owners(
    number: int,
    *processes: NumberedProcess,
    exact: bool = True,
    written: datetime | None = BEGUN,
    by_clock: bool = True,
) -> tuple[int, ...]:
    schema = f"pg_temp_{number}"
    files = {schema: written}
    return temp_owners(schema, APP, processes, exact=exact, files=files, by_clock=by_clock)


def test_the_process_of_the_number_owns_it_and_nobody_else() -> None:
    assert owners(3, process(2), process(3), process(4)) == (103,)
    assert owners(5, process(2), process(3)) == ()
    # Numbers begin at 0 since 17.
    assert owners(0, process(0), process(1)) == (100,)


@pytest.mark.parametrize(
    "changed",
    [
        {"database_oid": 5},
        {"backend": "autovacuum worker"},
        {"backend": "walsender"},
        {"backend": "parallel worker"},
        {"own": True},
        # Its client came after the newest of the tables was written: the number was given out again.
        {"started": BEGUN + timedelta(seconds=2)},
    ],
)
def test_a_process_that_only_carries_the_number_is_no_owner(changed: dict[str, Any]) -> None:
    assert owners(3, process(3, **changed)) == ()


def test_tables_without_files_are_nobodys() -> None:
    # A server that starts removes the files of temporary tables, and leaves their rows in the catalog.
    assert owners(3, process(3), written=None) == ()
    assert owners(3, process(3), written=None, by_clock=False) == ()


def test_a_clock_that_was_set_back_makes_nobody_an_orphan_where_orphans_are_dropped_at_once() -> (
    None
):
    written = BEGUN - timedelta(hours=1)
    assert owners(3, process(3), written=written, by_clock=False) == (103,)


def test_a_files_time_is_in_whole_seconds() -> None:
    assert owners(3, process(3), written=BEGUN.replace(microsecond=0)) == (103,)


def test_without_files_times_the_number_decides() -> None:
    found = temp_owners("pg_temp_3", APP, [process(3)], exact=True, files=None, by_clock=True)
    assert found == (103,)


def test_before_16_the_order_leaves_several_candidates() -> None:
    # The first to third of the order may have any rising numbers: 4 is one of theirs.
    assert owners(4, process(1), process(2), process(3), exact=False) == (101, 102, 103)
    # Nobody can have a number below his place.
    assert owners(1, process(1), process(2), exact=False) == (101,)


def test_before_16_those_in_a_transaction_bound_the_others() -> None:
    found = (process(1), process(2, virtual_number=2), process(3), process(4, virtual_number=6))
    assert owners(1, *found, exact=False) == (101,)
    assert owners(2, *found, exact=False) == (102,)
    assert owners(4, *found, exact=False) == (103,)
    assert owners(6, *found, exact=False) == (104,)
    assert owners(7, *found, exact=False) == ()


def test_a_schema_of_another_name_has_no_owner() -> None:
    schema, found = "pg_toast_temp_3", [process(3)]
    assert temp_owners(schema, APP, found, exact=True, files=None, by_clock=True) == ()
