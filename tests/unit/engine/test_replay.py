"""A day of traffic on the real step loop: the replay of its trace gives what was measured."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.engine.replay import Outcome, Policy, Replay, Sizes
from appliance.engine.trace import TraceWriter
from appliance.engine.trace_file import FORMAT, Request, Section, read_trace
from appliance.model.decoder import Decoder, load_model
from appliance.prompt.chat_format.model_text import ModelText
from bench.day_engine import DayEngine, Measured
from bench.day_traffic import Cause, Day, DayShape
from tests.model_fixtures import tiny_model, write_directory

CONTEXT = 384
PAGE_SIZE = 16
PAGES = 72
POINT = 0.01
SHAPE = DayShape(
    chats=8,
    messages=20,
    characters=2,
    tenants=2,
    character_tokens=40,
    user_tokens=6,
    reply_tokens=5,
    messages_before=10,
    sessions=2,
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


def sizes_of(pages: int, host_slots: int = 0) -> Sizes:
    return Sizes(page_size=PAGE_SIZE, pages=pages, host_slots=host_slots, disk_slots=0)


WHOLE, HALF, WITH_HOST = sizes_of(PAGES), sizes_of(PAGES // 2), sizes_of(PAGES // 2, 8 * PAGES)


class Recording(NamedTuple):
    """What a day found, and its trace."""

    measured: Measured
    requests: list[Request]


def writer(path: Path, sizes: Sizes) -> TraceWriter:
    section = Section(
        format=FORMAT,
        started_at=0.0,
        page_size=PAGE_SIZE,
        pages=sizes.pages,
        host_slots=sizes.host_slots,
        disk_slots=0,
        bytes_per_token=1024,
    )
    # Which ids are higher than others decides ties in the index.
    return TraceWriter(path, section, bytes_max=1 << 30, random=random.Random(0).randbytes)


def predicted(requests: list[Request], sizes: Sizes) -> Outcome:
    return Replay(sizes, Policy()).run(requests)


@pytest.fixture(scope="module")
def days(
    day_decoder: Decoder, text: ModelText, tmp_path_factory: pytest.TempPathFactory
) -> dict[Sizes, Recording]:
    """The same day on several sizes."""
    folder = tmp_path_factory.mktemp("days")
    recordings = {}
    for number, sizes in enumerate((WHOLE, HALF, WITH_HOST)):
        path = folder / str(number)
        day = Day(SHAPE, text.chat_format, context_tokens=CONTEXT, seed=3)
        trace = writer(path, sizes)
        engine = DayEngine(day_decoder, day, sizes, context_tokens=CONTEXT, trace=trace)
        measured = engine.run()
        (recorded,) = read_trace(path).recorded
        recordings[sizes] = Recording(measured=measured, requests=recorded.requests)
    return recordings


def test_each_trace_of_a_day_predicts_within_one_point_what_every_size_measured(
    days: dict[Sizes, Recording],
) -> None:
    # Half the memory must cost something, and the host tier help, or the test shows nothing.
    whole, half, with_host = (recording.measured for recording in days.values())
    assert half.hit_ratio < whole.hit_ratio - POINT
    assert with_host.hit_ratio > half.hit_ratio + POINT
    assert whole.evicted_pages > 0
    assert with_host.onloaded_tokens > 0
    for recording in days.values():
        assert len(recording.requests) == recording.measured.requests
        for sizes, (measured, _) in days.items():
            outcome = predicted(recording.requests, sizes)
            assert abs(outcome.hit_ratio - measured.hit_ratio) < POINT


def test_a_day_says_by_cause_what_it_missed(days: dict[Sizes, Recording]) -> None:
    day = days[WITH_HOST].measured
    assert sum(missed.requests for missed in day.missed.values()) == day.requests
    missed = sum(missed.tokens for missed in day.missed.values())
    assert missed == day.prompt_tokens - day.hit_tokens
    # With room for all, a next message costs itself and what the chat format puts around it.
    following = day.missed[Cause.NEXT]
    assert following.unsaid <= following.tokens < following.unsaid + 32 * following.requests
    cut = day.missed[Cause.CUT]
    assert cut.tokens > 100 * cut.requests > 0


def test_a_request_that_no_device_of_this_size_can_hold_is_refused_and_the_others_go_on(
    days: dict[Sizes, Recording],
) -> None:
    requests = days[WHOLE].requests
    outcome = predicted(requests, sizes_of(12))
    assert 0 < outcome.refused < len(requests)
    assert outcome.requests == len(requests)
    assert predicted(requests, sizes_of(12 * PAGES)).hit_ratio > outcome.hit_ratio


def test_requests_that_go_on_from_one_that_the_trace_lacks_are_left_out_and_counted(
    days: dict[Sizes, Recording],
) -> None:
    requests = days[WHOLE].requests
    outcome = predicted(requests[len(requests) // 2 :], sizes_of(PAGES))
    assert outcome.orphans > 0
    assert outcome.orphans + outcome.requests == len(requests) - len(requests) // 2
