"""The real PostgreSQL of this folder's tests."""

from __future__ import annotations

from tests.drill_fixtures import drill_folder, new_drill, pristine_clusters
from tests.postgres_fixtures import cluster, database_url, empty_database, ledger, pool

__all__ = [
    "cluster",
    "database_url",
    "drill_folder",
    "empty_database",
    "ledger",
    "new_drill",
    "pool",
    "pristine_clusters",
]
