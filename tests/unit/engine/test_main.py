"""The engine as a process: signals, exit codes, one line for what is wrong."""

from __future__ import annotations

import asyncio
import shutil
import signal
import stat
from pathlib import Path

import pytest

from appliance import tokens
from appliance.config import Config
from appliance.engine.trace_file import read_trace
from appliance.wire.client import EngineClient
from appliance.wire.frames import Admitted, Finished, Generate, Sampling
from tests.engine_fixtures import engine_config, start_engine

START_S = 300.0


def request(request_id: str, new_tokens_max: int) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=tokens.pack([5, 6, 7]),
        stretches=[(b"n", 3)],
        sampling=Sampling(),
        new_tokens_max=new_tokens_max,
        stop_token_ids=[],
    )


async def test_a_signal_lets_running_replies_end_refuses_the_rest_and_exits_with_zero(
    model_directory: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    config = engine_config(model_directory, tmp_path, running_max=1, trace_path=trace)
    process = start_engine(config)
    try:
        async with EngineClient(config.paths.engine_socket) as client:
            await asyncio.wait_for(client.wait_ready(), START_S)
            assert stat.S_IMODE(config.paths.engine_socket.stat().st_mode) == 0o600
            running = client.generate(request("a", 200))
            assert isinstance(await anext(running), Admitted)
            waiting = asyncio.create_task(anext(client.generate(request("b", 200))))
            while (await client.ask()).values["waiting"] == 0:
                await asyncio.sleep(0.001)
            process.send_signal(signal.SIGTERM)
            refused = await waiting
            assert isinstance(refused, Finished)
            assert refused.error_code == "server_shutdown"
            last = [event async for event in running][-1]
            assert isinstance(last, Finished)
            assert last.reason == "length"
        _, log = await asyncio.to_thread(process.communicate, timeout=START_S)
        assert process.returncode == 0, log
        assert not config.paths.engine_socket.exists()
        assert "Traceback" not in log
        (recorded,) = read_trace(trace).recorded
        assert [request.new_tokens for request in recorded.requests] == [200]
        assert recorded.section.page_size == config.engine.page_size
    finally:
        process.kill()
        process.communicate()


def failed_start(config: Config) -> tuple[int, str]:
    process = start_engine(config)
    _, log = process.communicate(timeout=START_S)
    return process.returncode, log


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_damaged_model_is_told_in_one_line_with_exit_code_2(
    model_directory: Path, tmp_path: Path, missing: str
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_directory, broken)
    (broken / missing).unlink()
    config = engine_config(broken, tmp_path)
    status, log = failed_start(config)
    assert status == 2
    assert len(log.splitlines()) == 1
    assert str(broken) in log
    assert not config.paths.engine_socket.exists()


def test_a_cache_too_small_for_the_context_is_told_before_anything_is_loaded(
    model_directory: Path, tmp_path: Path
) -> None:
    status, log = failed_start(engine_config(model_directory, tmp_path, kv_cache_bytes=10_000))
    assert status == 2
    assert len(log.splitlines()) == 1
    assert "context_tokens_max (256)" in log
    assert "kv_cache_bytes (10000)" in log


def test_a_file_in_the_place_of_the_socket_is_refused_and_kept(
    model_directory: Path, tmp_path: Path
) -> None:
    config = engine_config(model_directory, tmp_path)
    config.paths.engine_socket.write_text("not a socket")
    status, log = failed_start(config)
    assert status == 2
    assert "not a socket" in log
