"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.postgres_fixtures import cluster, database_url
from tests.unit.server.door import Door, open_door

__all__ = ["cluster", "database_url", "door", "stored_door"]


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """A server without a database: enough for stateless chats."""
    async with open_door() as opened:
        yield opened


@pytest.fixture
async def stored_door(database_url: str) -> AsyncIterator[Door]:
    """A server with a migrated database of its own."""
    async with open_door(url=database_url) as opened:
        yield opened
