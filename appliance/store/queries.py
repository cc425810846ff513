"""The queries of `store/sql/`, by name. Never builds one."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.named_sql import read_queries


def load_queries(name: str) -> Mapping[str, str]:
    """The queries of `store/sql/NAME.sql`."""
    return read_queries("appliance.store", name)
