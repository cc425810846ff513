"""A day of traffic on the real step loop: the replay of its trace gives what was measured."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.engine.replay import Outcome, Policy, Replay, Sizes
from appliance.engine.trace import TraceWriter
from appliance.engine.trace_file import FORMAT, Request, Section, read_trace
from appliance.model.decoder import Decoder, load_model
from appliance.prompt.model_text import ModelText
from bench.day_engine import DayEngine, Measured
from bench.day_index import DayIndex
from bench.day_traffic import Day, DayShape
from tests.model_fixtures import tiny_model, write_directory

CONTEXT = 512
PAGE_SIZE = 16
PAGES = 160
POINT = 0.01
SHAPE = DayShape(
    chats=10,
    messages=24,
    characters=2,
    tenants=2,
    character_tokens=40,
    user_tokens=6,
    reply_tokens=5,
    messages_before=10,
    sessions=3,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(max_position_embeddings=CONTEXT)
    return write_directory(tmp_path_factory.mktemp("day"), model)


@pytest.fixture(scope="module")
def day_decoder(directory: Path) -> Decoder:
    return load_model(directory, "cpu", 1)


@pytest.fixture(scope="module")
def text(directory: Path) -> ModelText:
    return ModelText.load(directory, now=datetime(2026, 1, 1, tzinfo=UTC))


def writer(path: Path, pages: int, host_slots: int = 0) -> TraceWriter:
    section = Section(
        format=FORMAT,
        started_at=0.0,
        page_size=PAGE_SIZE,
        pages=pages,
        host_slots=host_slots,
        disk_slots=0,
        onload_tokens_min=0 if host_slots else None,
        bytes_per_token=1024,
    )
    # Which ids are higher than others decides ties in the index.
    return TraceWriter(path, section, bytes_max=1 << 30, random=random.Random(0).randbytes)


def on_the_engine(decoder: Decoder, text: ModelText, path: Path, pages: int) -> Measured:
    day = Day(SHAPE, text.chat_format, context_tokens=CONTEXT, seed=3)
    trace = writer(path, pages)
    engine = DayEngine(
        decoder, day, pages=pages, page_size=PAGE_SIZE, context_tokens=CONTEXT, trace=trace
    )
    return engine.run()


def predicted(requests: list[Request], pages: int, host_slots: int = 0) -> Outcome:
    sizes = Sizes(page_size=PAGE_SIZE, pages=pages, host_slots=host_slots, disk_slots=0)
    policy = Policy(onload_tokens_min=0 if host_slots else None)
    return Replay(sizes, policy).run(requests)


@pytest.fixture(scope="module")
def whole_day(
    day_decoder: Decoder, text: ModelText, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Measured, list[Request]]:
    """A day with all pages, and its trace."""
    path = tmp_path_factory.mktemp("whole") / "trace"
    measured = on_the_engine(day_decoder, text, path, PAGES)
    return measured, requests_of(path)


def requests_of(path: Path) -> list[Request]:
    (recorded,) = read_trace(path).recorded
    return recorded.requests


def test_a_simulated_day_is_within_one_point_of_the_measured_one_with_all_pages_and_with_half(
    day_decoder: Decoder,
    text: ModelText,
    whole_day: tuple[Measured, list[Request]],
    tmp_path: Path,
) -> None:
    whole, requests = whole_day
    half = on_the_engine(day_decoder, text, tmp_path / "half", PAGES // 2)
    assert len(requests) == whole.requests
    assert whole.evicted_pages > 0
    # Half the memory must cost something, or the test shows nothing.
    assert half.hit_ratio < whole.hit_ratio - POINT
    for pages, measured in ((PAGES, whole), (PAGES // 2, half)):
        outcome = predicted(requests, pages)
        assert outcome.prompt_tokens == measured.prompt_tokens
        assert abs(outcome.hit_ratio - measured.hit_ratio) < POINT


def test_a_day_is_the_same_from_the_same_seed(text: ModelText) -> None:
    def measured(seed: int) -> Measured:
        day = Day(SHAPE, text.chat_format, context_tokens=CONTEXT, seed=seed)
        return DayIndex(
            day, Sizes(page_size=PAGE_SIZE, pages=PAGES, host_slots=PAGES, disk_slots=0)
        ).run()

    assert measured(1) == measured(1)
    assert measured(1) != measured(2)


def test_the_host_tier_finds_more_and_the_replay_says_how_much(
    text: ModelText, tmp_path: Path
) -> None:
    pages = PAGES // 2
    for host_slots in (0, 4 * PAGES):
        path = tmp_path / f"host{host_slots}"
        day = Day(SHAPE, text.chat_format, context_tokens=CONTEXT, seed=3)
        sizes = Sizes(page_size=PAGE_SIZE, pages=pages, host_slots=host_slots, disk_slots=0)
        trace = writer(path, pages, host_slots)
        measured = DayIndex(day, sizes, trace=trace).run()
        for recorded in tmp_path.glob("host*"):
            outcome = predicted(requests_of(recorded), pages, host_slots)
            assert abs(outcome.hit_ratio - measured.hit_ratio) < POINT
    assert outcome.onloaded_tokens > 0


def test_a_request_that_no_device_of_this_size_can_hold_is_refused_and_the_others_go_on(
    whole_day: tuple[Measured, list[Request]],
) -> None:
    _, requests = whole_day
    outcome = predicted(requests, 12)
    assert 0 < outcome.refused < len(requests)
    assert outcome.requests == len(requests)
    assert predicted(requests, 12 * PAGES).hit_ratio > outcome.hit_ratio


def test_requests_that_go_on_from_one_that_the_trace_lacks_are_left_out_and_counted(
    whole_day: tuple[Measured, list[Request]],
) -> None:
    _, requests = whole_day
    outcome = predicted(requests[len(requests) // 2 :], PAGES)
    assert outcome.orphans > 0
    assert outcome.orphans + outcome.requests == len(requests) - len(requests) // 2
