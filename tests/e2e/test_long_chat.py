"""A long chat over the real server and engine, with a tiny model: it stays cached through cuts."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from appliance.config import Config, DatabaseConfig, ModelSource, Paths
from appliance.model.decoder import load_model
from appliance.prompt.chat_format.model_text import ModelText
from bench.long_chat import run
from tests.engine_fixtures import engine_in_thread
from tests.model_fixtures import tiny_model, vocabulary, write_directory
from tests.postgres_fixtures import cluster, database_url
from tests.unit.server.door import served

__all__ = ["cluster", "database_url"]

# Control tokens end a reply, and bytes that are no character are encoded again.
ODD = [i for i, piece in enumerate(vocabulary()) if i < 3 or not piece.replace("Ġ", "").isascii()]
SETTINGS = {"temperature": 0, "logit_bias": {str(token): -100 for token in ODD}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(max_position_embeddings=8192)
    return write_directory(tmp_path_factory.mktemp("long"), model)


async def test_300_turns_through_several_cuts_are_found_in_the_cache_and_every_miss_has_a_cause(
    directory: Path, database_url: str, tmp_path: Path
) -> None:
    config = Config(
        model=ModelSource(path=directory, name="tiny"),
        paths=Paths(data_dir=tmp_path, run_dir=tmp_path),
        database=DatabaseConfig(url=database_url),
    )
    text = ModelText.load(directory, now=datetime(2026, 1, 31))
    decoder = load_model(directory, "cpu", 1)
    with engine_in_thread(decoder, config.paths.engine_socket, pages=1536):
        async with served(config, text) as (port, services):
            builder = services.turns.prompts.builder
            room = builder.window(services.catalog.current.get(None)).room
            chat = await asyncio.to_thread(
                run,
                f"http://127.0.0.1:{port}",
                turns=300,
                reply_tokens=6,
                words=3,
                settings=SETTINGS,
            )
    assert room > 7_000
    assert chat.hit_ratio >= 0.95, chat
    assert chat.unexplained == []
    assert set(chat.causes) == {"cut"}
    assert 2 <= chat.causes["cut"] <= 6
