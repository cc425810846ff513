"""Damage in a server's log, in the words of 15 and of 18."""

from __future__ import annotations

import pytest

from appliance.dbops.blockers.log_damage import damage_in_log

LOG = """\
03:00:00 [7] LOG:  database system is ready to accept connections
03:00:01 [8] app ERROR:  invalid page in block 5 of relation base/16384/16400
03:00:02 [8] app ERROR:  invalid page in block 5 of relation "base/16384/16400"
03:00:03 [8] ERROR:  could not read block 7 in file "global/1262": read only 0 of 8192 bytes
03:00:04 [8] ERROR:  invalid page in block 9 of relation pg_tblspc/16390/PG_15/16384/16401
03:00:05 [8] ERROR:  index "turns_key" contains corrupted page at block 3
03:00:06 [8] ERROR:  failed to re-find parent key in index "heads_key" for deletion target page 12
03:00:07 [8] ERROR:  duplicate key value violates unique constraint "turns_key"
"""


def test_each_damaged_page_and_index_is_found_once() -> None:
    found = damage_in_log(LOG)
    told = [
        (item.database_oid, item.space_oid, item.file, item.index, item.block) for item in found
    ]
    assert told == [
        (16_384, 0, 16_400, None, 5),
        (0, 1664, 1262, None, 7),
        (16_384, 16_390, 16_401, None, 9),
        (None, 0, None, "turns_key", 3),
        (None, 0, None, "heads_key", None),
    ]
    assert "03:00:02" in found[0].message


@pytest.mark.parametrize(
    ("prefix", "begin", "database"),
    [
        ("%m [%p] %q%d %a ", "2026-11-30 03:00:05.123 UTC [8] app [unknown] ", "app"),
        ("%m [%p] %q%d %a ", "2026-11-30 03:00:05.123 UTC [8] ", None),
        ("%t:%r:%u@%d:[%p]: ", "2026-11-30 03:00:05 UTC:10.0.0.8(50000):ann@app:[8]: ", "app"),
        ("%-10d|%% (.*) ", "app       |% (.*) ", "app"),
        ("%m [%p] %q%a ", "2026-11-30 03:00:05.123 UTC [8] app ", None),
        ("", "", None),
    ],
)
def test_a_line_names_its_database_where_the_prefix_does(
    prefix: str, begin: str, database: str | None
) -> None:
    line = f'{begin}ERROR:  index "turns_key" contains corrupted page at block 3'
    (found,) = damage_in_log(line, prefix)
    assert found.index == "turns_key"
    assert found.database == database


def test_an_index_of_one_name_is_told_for_each_database() -> None:
    line = 'ERROR:  index "turns_key" contains corrupted page at block 3'
    found = damage_in_log(f"app {line}\nother {line}\napp {line}", "%d ")
    assert [one.database for one in found] == ["app", "other"]
