"""Real engines on a tiny model, in a thread or in a process of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from appliance.config import Config, EngineConfig, ModelSource, Paths, ServerConfig, dump_config
from appliance.engine.connections import Connections
from appliance.engine.limits import EngineLimits
from appliance.engine.loop import LoopSettings
from appliance.engine.service import EngineService
from appliance.model.decoder import Decoder, load_model
from tests.model_fixtures import tiny_model, write_directory


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights and a context of 256 tokens."""
    return write_directory(tmp_path_factory.mktemp("tiny"), tiny_model())


@pytest.fixture(scope="session")
def decoder(model_directory: Path) -> Decoder:
    """The tiny model, loaded."""
    return load_model(model_directory, "cpu", 1)


@contextlib.contextmanager
def engine_in_thread(
    decoder: Decoder,
    socket_path: Path,
    *,
    pages: int = 64,
    running_max: int = 8,
    waiting_max: int = 64,
    drain_s: float = 5.0,
    exit_code: int = 0,
    disk_slots: int = 0,
    pin_pages_max: int = 0,
    kv_slots: Path | None = None,
) -> Iterator[EngineService]:
    """A serving engine; drained and joined at the end, which asserts its exit code."""
    page_size = 16
    limits = EngineLimits(
        pages=pages,
        page_size=page_size,
        disk_slots=disk_slots,
        pin_pages_max=pin_pages_max,
        threads=1,
        loop=LoopSettings(
            context_tokens_max=min(pages * page_size, decoder.config.context_tokens),
            running_max=running_max,
            waiting_max=waiting_max,
            step_tokens_max=64,
        ),
    )
    service = EngineService(
        decoder,
        limits,
        partial(Connections, socket_path),
        pid=os.getpid(),
        drain_s=drain_s,
        kv_slots=kv_slots,
    )
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(service.serve()), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(30)
        assert results == [exit_code]


def engine_config(model: Path, folder: Path, **engine: object) -> Config:
    """A configuration of a small engine whose socket is in `folder`."""
    settings = {"device": "cpu", "kv_cache_bytes": 4 * 2**20, "threads": 1} | engine
    return Config(
        model=ModelSource(path=model, name="tiny"),
        paths=Paths(data_dir=folder, run_dir=folder),
        server=ServerConfig(drain_s=60),
        engine=EngineConfig(**settings),  # type: ignore[arg-type]
    )


def start_engine(config: Config) -> subprocess.Popen[str]:
    """`appliance engine` as a process; its log is in the pipe `stderr`."""
    path = config.paths.run_dir / "engine.toml"
    path.write_text(dump_config(config))
    command = [sys.executable, "-m", "appliance.cli.main", "engine", "--config", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
