"""Faults of the lower tiers: nothing wrong is used, nothing that fails ends the engine, budgets hold."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from appliance import tokens
from appliance._core import page_keys
from appliance.engine import disk_tier, tiers
from appliance.engine.slot_file import HEADER_BYTES, RECORD_BYTES
from appliance.model.decoder import Decoder, load_model
from appliance.wire.client import EngineClient
from appliance.wire.frames import Admitted, Generate, Sampling
from tests.engine_fixtures import decoder, engine_in_thread, model_directory
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.engine.driver import Driver
from tests.unit.engine.faulty_decoder import FaultyDecoder

__all__ = ["decoder", "model_directory"]

MIB = 2**20
ALICE, BOB = b"alice", b"bob"
FIRST, SECOND = list(range(10, 90)), list(range(100, 190))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv" / "slots"


Start = Callable[..., Driver]


@pytest.fixture
def start(decoder: Decoder, path: Path) -> Iterator[Start]:
    """Makes drivers with a disk tier; the one before is closed."""
    made: list[Driver] = []

    def make(model: Decoder = decoder, **options: int) -> Driver:
        if made:
            made.pop().tiers.close()
        settings = {"pages": 14, "disk_slots": 40} | options
        made.append(Driver(model, kv_slots=path, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    made.pop().tiers.close()


def on_disk(driver: Driver) -> None:
    """Two chats, and then one that needs all pages: the first pages of both are in lower tiers."""
    driver.run(FIRST, namespace=ALICE)
    driver.run(SECOND, namespace=BOB)
    driver.run(list(range(3, 205)), new_tokens_max=22, namespace=b"carol")
    if driver.disk is not None:
        assert driver.disk.finish(10)


def slot_of(driver: Driver, prompt: list[int], page: int, namespace: bytes) -> int:
    stretches = [(driver.decoder.fingerprint.encode() + namespace, len(prompt))]
    keys = page_keys(tokens.pack(prompt), stretches, driver.page_size)
    return dict(driver.index.tier_pages("disk"))[keys[page * 32 : page * 32 + 32]]


def assert_hit(driver: Driver, prompt: list[int], namespace: bytes, hit: int) -> None:
    run = driver.run(prompt, namespace=namespace)
    assert driver.reason(run) == "length"
    assert driver.hit(run) == hit
    driver.compare_with_recomputation(run)


def test_a_flipped_bit_on_disk_costs_the_pages_from_there_on(
    start: Start, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    on_disk(driver)
    assert driver.disk is not None
    file = driver.disk.file_bytes - driver.disk.slots * driver.cache.page_content_bytes
    at = file + slot_of(driver, FIRST, 2, ALICE) * driver.cache.page_content_bytes + 1000
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    with path.open("r+b") as raw:
        raw.write(data)
    assert_hit(driver, FIRST, ALICE, 32)
    assert_hit(driver, SECOND, BOB, 80)
    stats = driver.tiers.stats()
    assert stats["tier_rejected_pages"] >= 1
    assert stats["tier_disk_off"] == 0
    assert "pages_rejected" in caplog.text


def test_a_page_of_another_tenant_that_is_put_in_place_is_not_restored(
    start: Start, path: Path
) -> None:
    driver = start()
    on_disk(driver)
    mine, other = slot_of(driver, FIRST, 0, ALICE), slot_of(driver, SECOND, 0, BOB)
    size = driver.cache.page_content_bytes
    assert driver.disk is not None
    contents = driver.disk.file_bytes - driver.disk.slots * size
    data = bytearray(path.read_bytes())
    for first, part in ((HEADER_BYTES, RECORD_BYTES), (contents, size)):
        begin, source = first + mine * part, first + other * part
        data[begin : begin + part] = data[source : source + part]
    with path.open("r+b") as raw:
        raw.write(data)
    assert_hit(driver, FIRST, ALICE, 0)
    assert_hit(driver, SECOND, BOB, 80)


def test_a_host_slot_with_another_page_than_the_index_says_is_not_restored(start: Start) -> None:
    driver = start(host_slots=30)
    on_disk(driver)
    keys = driver.tiers._host_keys
    stretches = [(driver.decoder.fingerprint.encode() + ALICE, len(FIRST))]
    third = page_keys(tokens.pack(FIRST), stretches, driver.page_size)[64:96]
    keys[keys.index(third)] = b"another page"
    assert_hit(driver, FIRST, ALICE, 32)
    assert_hit(driver, SECOND, BOB, 80)


def fails(code: int) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "preadv"])
@pytest.mark.parametrize("host_slots", [0, 5])
def test_a_disk_that_fails_is_left_and_chats_go_on(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    call: str,
    host_slots: int,
) -> None:
    driver = start(host_slots=host_slots)
    if call == "preadv":
        on_disk(driver)
    monkeypatch.setattr(os, call, fails(code))
    on_disk(driver)
    for prompt, owner in ((FIRST, ALICE), (SECOND, BOB)):
        run = driver.run(prompt, namespace=owner)
        driver.compare_with_recomputation(run)
    assert driver.tiers.stats()["tier_disk_off"] == 1
    off = [record for record in caplog.records if record.message == "disk_tier_off"]
    assert len(off) == 1
    driver.tiers.save(1.0)


def test_a_disk_that_does_not_answer_is_left(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    on_disk(driver)
    answer = threading.Event()
    real = os.preadv

    def hang(*arguments: object) -> int:
        answer.wait(20)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", hang)
    monkeypatch.setattr(tiers, "ANSWER_S", 0.05)
    started = time.monotonic()
    assert_hit(driver, FIRST, ALICE, 0)
    assert time.monotonic() - started < 5
    assert driver.tiers.stats()["tier_disk_off"] == 1
    answer.set()
    assert "no answer" in str([record.__dict__.get("failure") for record in caplog.records])


def test_pages_that_a_slow_disk_cannot_take_in_time_are_dropped_and_computed_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_tier, "BUFFER_BYTES", 0)
    monkeypatch.setattr(tiers, "WRITE_WAIT_S", 0.001)
    driver = start()
    answer = threading.Event()
    real = os.pwrite

    def slow(*arguments: object) -> int:
        answer.wait(20)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwrite", slow)
    driver.run(FIRST, namespace=ALICE)
    driver.run(SECOND, namespace=BOB)
    started = time.monotonic()
    driver.run(list(range(3, 205)), new_tokens_max=22, namespace=b"carol")
    assert time.monotonic() - started < 10
    answer.set()
    assert driver.tiers.stats()["tier_dropped_writes"] > 0
    for prompt, owner in ((FIRST, ALICE), (SECOND, BOB)):
        driver.compare_with_recomputation(driver.run(prompt, namespace=owner))
    assert driver.tiers.stats()["tier_rejected_pages"] > 0
    assert driver.tiers.stats()["tier_disk_off"] == 0


def test_another_models_pages_are_not_used_even_with_the_same_tokens(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk(driver := start())
    driver.tiers.save(10)
    other = load_model(write_directory(tmp_path / "other", tiny_model(seed=2)), "cpu", 1)
    assert other.fingerprint != driver.decoder.fingerprint
    driver = start(other)
    assert caplog.records[0].__dict__["reason"] == "another model_fingerprint"
    assert driver.index.stats()["pages_disk"] == 0
    assert_hit(driver, FIRST, ALICE, 0)


def test_pages_of_another_element_type_are_not_used(start: Start, decoder: Decoder) -> None:
    on_disk(driver := start())
    driver.tiers.save(10)
    driver = start(kv_dtype=torch.int8)
    assert driver.index.stats()["pages_disk"] == 0


def test_pages_come_back_only_where_that_is_faster_than_computing_them(
    start: Start, decoder: Decoder
) -> None:
    step_s = 10.0
    driver = start(FaultyDecoder(decoder, lambda _: tick()))

    def tick() -> None:
        driver.now += step_s

    on_disk(driver)
    assert driver.tiers.stats()["prefill_token_seconds"] > 0.1
    assert_hit(driver, FIRST, ALICE, 64)
    assert driver.tiers.stats()["tier_disk_page_seconds"] > 0
    step_s = 1e-9
    for seed in range(40):
        driver.run(list(range(3 + seed, 150 + seed)), new_tokens_max=1)
    assert driver.tiers.stats()["prefill_token_seconds"] < 1
    for seed in range(60):
        driver.run(list(range(3, 103)) + [3 + seed] * 90, new_tokens_max=1)
    on_disk(driver)
    restored = driver.tiers.stats()["tier_restored_pages"]
    run = driver.run(FIRST, namespace=ALICE)
    assert driver.tiers.stats()["tier_restored_pages"] == restored
    driver.compare_with_recomputation(run)


def test_int8_pages_come_back_with_the_same_bits(start: Start) -> None:
    driver = start(kv_dtype=torch.int8, host_slots=5)
    first = driver.run(FIRST, namespace=ALICE)
    on_disk(driver)
    again = driver.run(FIRST, namespace=ALICE)
    assert driver.hit(again) == 64
    assert driver.tiers.stats()["tier_restored_pages"] >= 4
    # 16 tokens are computed in another batch than before: equal but for float32's roundings.
    for one, other in zip(driver.logprobs(first), driver.logprobs(again), strict=True):
        assert one.token_id == other.token_id
        assert abs(one.logprob - other.logprob) < 1e-2


def test_what_was_forgotten_does_not_come_back_after_a_restart(start: Start) -> None:
    on_disk(driver := start())
    assert driver.tiers.forget() > 0
    assert driver.index.stats()["pages_disk"] == 0
    assert_hit(driver, FIRST, ALICE, 0)
    driver = start()
    assert_hit(driver, SECOND, BOB, 0)


def test_a_stop_saves_the_most_recent_pages_first_when_there_are_fewer_slots(start: Start) -> None:
    driver = start(disk_slots=6, host_slots=4)
    on_disk(driver)
    last = driver.run(SECOND, namespace=BOB)
    driver.tiers.save(10)
    driver = start(disk_slots=6, host_slots=4)
    assert driver.index.stats()["pages_disk"] == 6
    # Its five full pages were the last to be used; the end of the reply is in a page that is not full.
    assert_hit(driver, SECOND, BOB, 80)
    assert last is not None


@pytest.mark.parametrize("buffers", [3, 100])
def test_a_stop_with_little_time_saves_the_most_recent_pages_and_keeps_their_order(
    start: Start, monkeypatch: pytest.MonkeyPatch, buffers: int
) -> None:
    driver = start()
    driver.run(FIRST, namespace=ALICE)
    driver.run(SECOND, namespace=BOB)
    assert driver.disk is not None
    taken = [driver.disk.take_buffer(1.0) for _ in range(min(buffers, 20))] + [None]
    answers = iter(taken)
    monkeypatch.setattr(driver.disk, "take_buffer", lambda _: next(answers))
    driver.tiers.save(10)
    monkeypatch.undo()
    driver = start()
    stretches = [(driver.decoder.fingerprint.encode() + BOB, len(SECOND))]
    keys = page_keys(tokens.pack(SECOND), stretches, driver.page_size)
    # A chat is evicted from its end, so its first page is the last to be given up.
    recent = [keys[at : at + 32] for at in range(0, len(keys), 32)][::-1]
    found = [key for key, _ in driver.index.tier_pages("disk")]
    assert len(found) == (3 if buffers == 3 else 11), "both chats, their replies included"
    assert found[-3:] == recent[-3:]


def test_a_stop_without_time_saves_nothing_and_does_no_harm(start: Start) -> None:
    driver = start()
    driver.run(FIRST, namespace=ALICE)
    driver.tiers.save(0.0)
    driver = start()
    run = driver.run(FIRST, namespace=ALICE)
    driver.compare_with_recomputation(run)


def test_a_service_that_is_stopped_and_started_again_finds_its_chats(
    decoder: Decoder, path: Path, tmp_path: Path
) -> None:
    async def hit_tokens() -> int:
        async with EngineClient(tmp_path / "socket") as client:
            await client.wait_ready()
            request = Generate(
                request_id="a",
                token_ids=tokens.pack(FIRST),
                stretches=[(ALICE, len(FIRST))],
                sampling=Sampling(temperature=0.0),
                new_tokens_max=4,
                stop_token_ids=[],
            )
            events = [event async for event in client.generate(request)]
            stats = (await client.ask(check=True)).values
            assert stats["tier_disk_bytes_max"] > 0
            assert stats["tier_disk_off"] == 0
            assert isinstance(events[0], Admitted)
            return events[0].prefix_hit_tokens

    hits = []
    for _ in range(2):
        with engine_in_thread(decoder, tmp_path / "socket", disk_slots=20, kv_slots=path):
            hits.append(asyncio.run(hit_tokens()))
    assert hits == [0, 64]
    with engine_in_thread(decoder, tmp_path / "socket", kv_slots=path):
        pass
    assert not path.exists(), "a budget of nothing leaves no file"


def test_the_tiers_keep_their_budgets(path: Path) -> None:
    # In a process of its own: memory that earlier tests gave back would be used without being counted.
    command = [sys.executable, "-m", "tests.unit.engine.tier_budgets", str(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3])


def test_an_engine_that_is_killed_at_any_moment_uses_only_right_pages_afterwards(
    model_directory: Path, path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.tier_crash", str(model_directory), str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "restored" in done.stdout
