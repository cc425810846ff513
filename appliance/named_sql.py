"""Named SQL: the queries of a `.sql` file, each under a `-- name:` line. Never builds SQL from parts.

The format is procrastinate's and pg_activity's: what stands between two `-- name:` lines is one query,
its comments included (PostgreSQL ignores them, and they show in its activity view).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


def parse_queries(text: str) -> Mapping[str, str]:
    """The queries of a file's text by name; the text before the first name must be blank."""
    preamble, *parts = _NAME.split(text)
    assert not preamble.strip(), "text before the first `-- name:` line"
    queries: dict[str, str] = {}
    for name, body in zip(parts[0::2], parts[1::2], strict=True):
        assert name not in queries, f"two queries are named {name}"
        queries[name] = body.strip().removesuffix(";")
    return MappingProxyType(queries)


def read_queries(package: str, name: str) -> Mapping[str, str]:
    """The queries of `sql/NAME.sql` in a package."""
    folder = resources.files(package) / "sql"
    return parse_queries((folder / f"{name}.sql").read_text(encoding="utf-8"))
