"""The SQL of a drill: its tables, and how IDs are spent. Text only; runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


def _load() -> Mapping[str, str]:
    folder = resources.files("appliance.dbops.drill") / "sql"
    _, *parts = _NAME.split((folder / "ground.sql").read_text(encoding="utf-8"))
    return MappingProxyType(dict(zip(parts[0::2], parts[1::2], strict=True)))


GROUND = _load()
"""The statements of `sql/ground.sql` by name; `create` and `load` are several each."""
