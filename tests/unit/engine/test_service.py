"""How an engine ends: drained, in a hurry, or with its device."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import torch

from appliance import tokens
from appliance.engine.service import EXIT_DEVICE_LOST
from appliance.errors import EngineUnavailable
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.wire.client import EngineClient
from appliance.wire.frames import Admitted, Finished, Generate, Sampling
from tests.engine_fixtures import engine_in_thread
from tests.unit.engine.faulty_decoder import FaultyDecoder

PATIENCE_S = 30.0


def request(request_id: str) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=tokens.pack([5, 6, 7]),
        stretches=[(b"n", 3)],
        sampling=Sampling(),
        new_tokens_max=240,
        stop_token_ids=[],
    )


async def last_event(client: EngineClient, request_id: str) -> Finished:
    events = [event async for event in client.generate(request(request_id))]
    assert isinstance(events[-1], Finished)
    return events[-1]


def slowly(batch: StepBatch) -> None:
    time.sleep(0.05)


@pytest.mark.parametrize(("drain_s", "stops"), [(0.2, 1), (600.0, 2)])
async def test_a_drain_ends_at_its_bound_or_at_the_second_signal(
    decoder: Decoder, tmp_path: Path, drain_s: float, stops: int
) -> None:
    path = tmp_path / "engine.sock"
    slow = FaultyDecoder(decoder, slowly)
    with engine_in_thread(slow, path, drain_s=drain_s) as service:
        async with EngineClient(path) as client:
            await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
            stream = client.generate(request("a"))
            assert isinstance(await anext(stream), Admitted)
            for _ in range(stops):
                service.stop()
            events = [event async for event in stream]
            finished = events[-1]
            assert isinstance(finished, Finished)
            assert (finished.reason, finished.error_code) == ("failed", "server_shutdown")
            assert finished.new_tokens < 240


async def test_a_lost_device_fails_every_request_and_ends_the_process(
    decoder: Decoder, tmp_path: Path
) -> None:
    path = tmp_path / "engine.sock"
    steps = 0

    def fault(batch: StepBatch) -> None:
        nonlocal steps
        steps += 1
        if steps > 10:
            raise torch.AcceleratorError("an illegal memory access was encountered")

    broken = FaultyDecoder(decoder, fault)
    with engine_in_thread(broken, path, exit_code=EXIT_DEVICE_LOST):
        async with EngineClient(path) as client:
            await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
            ends = await asyncio.gather(*(last_event(client, f"r{i}") for i in range(4)))
            assert [end.error_code for end in ends] == ["generation_failed"] * 4
            async with asyncio.timeout(PATIENCE_S):
                while client.ready:
                    await asyncio.sleep(0.01)
            with pytest.raises(EngineUnavailable):
                await last_event(client, "r9")
