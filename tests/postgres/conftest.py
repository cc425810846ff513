"""The real PostgreSQL of this folder's tests."""

from __future__ import annotations

from tests.postgres_fixtures import cluster, database_url, empty_database, ledger, pool

__all__ = ["cluster", "database_url", "empty_database", "ledger", "pool"]
