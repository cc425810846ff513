"""Two engine processes on the CPU: kill -9 of one moves its conversations, and they come back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from appliance.config import dump_config, engine_configs
from appliance.server.main import engines_of
from appliance.tokens import pack
from appliance.wire.engines import Engines
from appliance.wire.frames import Admitted, Finished, Generate, Sampling
from tests.engine_fixtures import engine_config
from tests.model_fixtures import tiny_model, write_directory

CONVERSATIONS = [f"c{number}".encode() for number in range(8)]


def start(config_path: Path, number: int) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "appliance.cli.main", "engine", "--config", str(config_path))
    return subprocess.Popen([*command, "--number", str(number)], stderr=subprocess.DEVNULL)


async def until_ready(engines: Engines, expected: list[bool]) -> None:
    async with asyncio.timeout(60):
        while list(engines.ready_by_name.values()) != expected:
            await asyncio.sleep(0.02)


async def send_all(engines: Engines, turn: int) -> list[int]:
    """The same prompt in every conversation; how many of its tokens each found in the cache."""
    hits = []
    for number, conversation in enumerate(CONVERSATIONS):
        namespace = b"tenant:" + conversation
        request = Generate(
            request_id=f"{turn}-{number}",
            token_ids=pack(range(3, 43)),
            stretches=[(namespace, 40)],
            sampling=Sampling(temperature=0),
            new_tokens_max=2,
            stop_token_ids=[],
            conversation=conversation,
        )
        events = [event async for event in engines.generate(request)]
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "length"
        hits += [event.prefix_hit_tokens for event in events if isinstance(event, Admitted)]
    return hits


async def submitted(engines: Engines) -> list[float | None]:
    answers = (await engines.ask_each(timeout_s=10)).values()
    return [None if answer is None else answer.values["submitted"] for answer in answers]


async def test_conversations_stick_leave_a_killed_engine_and_come_back(tmp_path: Path) -> None:
    model = write_directory(tmp_path / "m", tiny_model())
    config = engine_config(model, tmp_path, device="auto", devices=("cpu", "cpu"))
    config_path = tmp_path / "box.toml"
    config_path.write_text(dump_config(config))
    assert len(engine_configs(config)) == 2
    running = [start(config_path, number) for number in (0, 1)]
    try:
        async with engines_of(config) as engines:
            await until_ready(engines, [True, True])
            assert await send_all(engines, 1) == [0] * 8
            # All but the last token of the prompt: every conversation is back where its K/V are.
            assert await send_all(engines, 2) == [39] * 8
            counts = await submitted(engines)
            home = counts[0]
            assert home is not None
            assert 0 < home < 16
            os.kill(running[0].pid, signal.SIGKILL)
            assert running[0].wait(20) == -signal.SIGKILL
            await until_ready(engines, [False, True])
            assert sorted(await send_all(engines, 3)) == [0] * int(home / 2) + [39] * (
                8 - int(home / 2)
            )
            assert await submitted(engines) == [None, 16 - home + 8]
            running[0] = start(config_path, 0)
            await until_ready(engines, [True, True])
            await send_all(engines, 4)
            assert (await submitted(engines))[0] == home / 2
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)
