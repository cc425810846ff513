"""Two tenants over real HTTP and a real engine: neither can tell what the other asked."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from appliance.config import ApiKey, Config, DatabaseConfig, ModelSource, Paths, ServerConfig
from appliance.model.decoder import Decoder
from appliance.prompt.chat_format.model_text import ModelText
from tests.engine_fixtures import decoder, engine_in_thread, model_directory
from tests.unit.server.door import NOWHERE, served

__all__ = ["decoder", "model_directory"]

SECRET = "My account number is 5550-1234 and " * 3


def config(directory: Path, model: Path) -> Config:
    keys = tuple(
        ApiKey(tenant=tenant, sha256=hashlib.sha256(tenant.encode()).hexdigest())
        for tenant in ("alice", "bob")
    )
    return Config(
        model=ModelSource(path=model, name="tiny"),
        paths=Paths(data_dir=directory, run_dir=directory),
        server=ServerConfig(api_keys=keys),
        database=DatabaseConfig(url=NOWHERE),
    )


async def test_a_prompt_of_one_tenant_is_cached_for_itself_and_not_for_another(
    model_directory: Path, decoder: Decoder, tmp_path: Path
) -> None:
    text = ModelText.load(model_directory, now=datetime(2026, 1, 1, tzinfo=UTC))
    settings = config(tmp_path, model_directory)

    async def cached(session: aiohttp.ClientSession, port: int, tenant: str, **fields: str) -> int:
        body: dict[str, Any] = {
            "model": "tiny",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": SECRET}],
            **fields,
        }
        async with session.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {tenant}"},
        ) as answer:
            assert answer.status == 200
            usage = (await answer.json())["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

    with engine_in_thread(decoder, settings.paths.engine_socket):
        async with served(settings, text) as (port, _), aiohttp.ClientSession() as session:
            assert await cached(session, port, "alice") == 0
            assert await cached(session, port, "bob") == 0
            assert await cached(session, port, "alice") > len(SECRET) // 2
    with engine_in_thread(decoder, settings.paths.engine_socket):
        async with served(settings, text) as (port, _), aiohttp.ClientSession() as session:
            assert await cached(session, port, "alice") == 0
            assert await cached(session, port, "bob", cache_salt="alice", user="alice") == 0
