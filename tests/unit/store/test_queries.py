"""Named SQL files."""

from __future__ import annotations

import re

import pytest

from appliance.named_sql import parse_queries
from appliance.store.migrate import load_migrations
from appliance.store.queries import load_queries
from tests.ledger_statements import OF_ALL_TENANTS


def test_a_query_is_what_stands_between_two_names() -> None:
    text = "-- name: first\n-- why\nSELECT 1;\n\n-- name: second\nSELECT ';'\n  FROM t;\n"
    assert parse_queries(text) == {"first": "-- why\nSELECT 1", "second": "SELECT ';'\n  FROM t"}


def test_a_name_twice_and_text_before_the_first_are_bugs() -> None:
    with pytest.raises(AssertionError, match="named a"):
        parse_queries("-- name: a\nSELECT 1\n-- name: a\nSELECT 2\n")
    with pytest.raises(AssertionError, match="before the first"):
        parse_queries("SELECT 1;\n-- name: a\nSELECT 2\n")


@pytest.mark.parametrize("name", ["ledger", "migrate"])
def test_our_queries_name_their_columns_and_contain_no_format_marks(name: str) -> None:
    for query in load_queries(name).values():
        assert not re.search(r"SELECT\s+\*|\.\*|%s|\{", query)


def test_every_statement_on_a_table_of_the_ledger_names_the_tenant() -> None:
    for name, query in load_queries("ledger").items():
        if name in OF_ALL_TENANTS:
            continue
        scans = len(re.findall(r"(?:FROM|JOIN|UPDATE) appliance\.\w+", query))
        assert len(re.findall(r"tenant = \$1::text", query)) >= scans, name
        if "appliance.messages" in query:
            assert "$2::uuid" in query, name


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    found = load_migrations()
    assert found
    assert [m.version for m in found] == list(range(1, len(found) + 1))
    assert all(m.sql.strip() for m in found)


def test_columns_that_queries_have_in_common_stand_in_them_where_they_are_named() -> None:
    text = (
        "-- columns: pair\na,\n  b\n\n-- name: plain\nSELECT {pair} FROM t;\n"
        "-- name: joined\nSELECT x, {m.pair}, '{other}' FROM t AS m;\n"
    )
    assert parse_queries(text) == {
        "plain": "SELECT a, b FROM t",
        "joined": "SELECT x, m.a, m.b, '{other}' FROM t AS m",
    }
