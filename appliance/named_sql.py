"""Named SQL: the queries of a `.sql` file, each under a `-- name:` line.

The format is procrastinate's and pg_activity's: what stands between two `-- name:` lines is one query,
its comments included (PostgreSQL ignores them, and they show in its activity view). Under a line
`-- columns: NAME` stands a list that queries below it have in common: `{NAME}` in them, or `{t.NAME}` for
the columns of `t`. Never: puts anything else into a query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType

_HEAD = re.compile(r"^-- (name|columns): ([a-z_]+)$", re.MULTILINE)
_PLACE = re.compile(r"\{(?:([a-z]+)\.)?([a-z_]+)\}")


def parse_queries(text: str) -> Mapping[str, str]:
    """The queries of a file's text by name; the text before the first name must be blank."""
    preamble, *parts = _HEAD.split(text)
    assert not preamble.strip(), "text before the first `-- name:` line"
    queries: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for kind, name, body in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        assert name not in queries.keys() | lists.keys(), f"two queries are named {name}"
        if kind == "columns":
            lists[name] = [column.strip() for column in body.split(",")]
        else:
            queries[name] = _filled(body.strip().removesuffix(";"), lists)
    return MappingProxyType(queries)


def _filled(query: str, lists: Mapping[str, Sequence[str]]) -> str:
    def columns(place: re.Match[str]) -> str:
        table, name = place.groups()
        if name not in lists:
            return place[0]
        return ", ".join(column if table is None else f"{table}.{column}" for column in lists[name])

    return _PLACE.sub(columns, query)


def read_queries(package: str, name: str) -> Mapping[str, str]:
    """The queries of `sql/NAME.sql` in a package."""
    folder = resources.files(package) / "sql"
    return parse_queries((folder / f"{name}.sql").read_text(encoding="utf-8"))
