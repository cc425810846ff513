"""Opening a pool, which opens no connection."""

from __future__ import annotations

import pytest

from appliance.config import DatabaseConfig
from appliance.errors import ConfigError
from appliance.store.pool import connect


async def test_a_pool_opens_while_the_database_is_away() -> None:
    pool = await connect("postgresql://x@/x?host=/nowhere", DatabaseConfig())
    assert pool.get_size() == 0
    await pool.close()


@pytest.mark.parametrize("url", ["", "mysql://x/y", "postgresql://h:port/db", "nonsense"])
async def test_a_url_that_is_none_is_refused_by_the_settings_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"database\.url"):
        await connect(url, DatabaseConfig())
