"""The statements of a run, by their names in `sql/run.sql`."""

from __future__ import annotations

from appliance.named_sql import read_queries

QUERIES = read_queries("appliance.dbops", "run")
