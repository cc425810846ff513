"""The SQL of a drill: its tables, and how IDs are spent. Text only; runs nothing."""

from __future__ import annotations

from appliance.named_sql import read_queries

GROUND = read_queries("appliance.dbops.drill", "ground")
"""The statements of `sql/ground.sql` by name; `create` and `load` are several each."""
