"""The trace of an engine: what it records, what it hides, and what a damaged file still gives."""

from __future__ import annotations

import os
import random
import stat
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from appliance import tokens
from appliance.engine.replay import Policy, Replay, Sizes
from appliance.engine.trace import Hiding, TraceWriter
from appliance.engine.trace_file import FORMAT, MAGIC, Deed, Request, Section, read_trace
from appliance.errors import ConfigError, InvalidTrace
from appliance.model.decoder import Decoder
from tests.unit.engine.driver import Driver

PAGES = 24
PAGE_SIZE = 16
SECTION = Section(
    format=FORMAT,
    started_at=time.time(),
    page_size=PAGE_SIZE,
    pages=PAGES,
    host_slots=0,
    disk_slots=0,
    bytes_per_token=64,
)
SECRET = b"tenant:somebody"


def traced(decoder: Decoder, path: Path, *, bytes_max: int = 1 << 20, pages: int = PAGES) -> Driver:
    writer = TraceWriter(path, SECTION, bytes_max=bytes_max)
    return Driver(decoder, pages=pages, page_size=PAGE_SIZE, trace=writer)


def records(path: Path) -> list[Request]:
    (recorded,) = read_trace(path).recorded
    return recorded.requests


def test_the_record_of_a_request_has_its_deeds_in_order_and_what_was_found(
    decoder: Decoder, tmp_path: Path
) -> None:
    driver = traced(decoder, tmp_path / "trace")
    driver.run(range(5, 45), new_tokens_max=4, closing=[2, 3])
    again = driver.run(range(5, 60), new_tokens_max=4)
    first, second = records(tmp_path / "trace")
    assert [mark.deed for mark in first.marks] == [
        Deed.ADMIT,
        Deed.COMMIT,
        Deed.COMMIT,
        Deed.RELEASE,
    ]
    assert [mark.tokens for mark in first.marks[1:3]] == [40, 46]
    assert (first.new_tokens, tokens.count(first.reply), first.reason) == (4, 6, "length")
    assert (first.hit_tokens, second.hit_tokens) == (0, driver.hit(again))
    orders = [mark.order for request in (first, second) for mark in request.marks]
    assert orders == sorted(set(orders))


def test_a_continuation_is_recorded_by_its_node_and_its_new_tokens_alone(
    decoder: Decoder, tmp_path: Path
) -> None:
    driver = traced(decoder, tmp_path / "trace")
    prompt = list(range(5, 105))
    before = driver.run(prompt, new_tokens_max=2)
    node = driver.node(before)
    grown = [*prompt, *driver.reply(before), 7, 8, 9]
    driver.run(grown, new_tokens_max=2, after=node)
    first, second = records(tmp_path / "trace")
    assert second.after == (first.node, node.tokens)
    assert tokens.count(second.token_ids) == 3
    assert second.prompt_tokens == len(grown)


def test_a_cancelled_request_is_recorded_with_what_was_kept(
    decoder: Decoder, tmp_path: Path
) -> None:
    driver = traced(decoder, tmp_path / "trace")
    running = driver.submit(range(5, 25), new_tokens_max=30)
    never_admitted = driver.submit(range(5, 25), new_tokens_max=30)
    for _ in range(6):
        driver.step()
    driver.cancel(running, 3)
    driver.cancel(never_admitted, 0)
    request = records(tmp_path / "trace")[0]
    assert request.reason == "cancelled"
    assert request.marks[-2].tokens == 20 + 3
    assert request.new_tokens > 3


def test_a_preempted_request_is_one_record_with_an_admission_for_each_time(
    decoder: Decoder, tmp_path: Path
) -> None:
    driver = traced(decoder, tmp_path / "trace", pages=12)
    for start in (5, 40):
        driver.submit(range(start, start + 20), new_tokens_max=140)
    driver.finish()
    assert driver.loop.counters.preempted > 0
    requests = records(tmp_path / "trace")
    assert len(requests) == 2
    admissions = [sum(mark.deed is Deed.ADMIT for mark in r.marks) for r in requests]
    assert sum(admissions) == 2 + driver.loop.counters.preempted
    sizes = Sizes(page_size=PAGE_SIZE, pages=12, host_slots=0, disk_slots=0)
    outcome = Replay(sizes, Policy()).run(requests)
    assert outcome.hit_tokens == driver.loop.counters.prefix_hit_tokens


def test_hidden_ids_are_a_bijection_that_differs_from_engine_to_engine() -> None:
    ids = tokens.pack([*range(60_000), 2**32 - 1, 2**31])
    hidden, others = Hiding(os.urandom).token_ids(ids), Hiding(os.urandom).token_ids(ids)
    assert len(set(tokens.unpack(hidden))) == tokens.count(ids)
    same = sum(a == b for a, b in zip(tokens.unpack(ids), tokens.unpack(hidden), strict=True))
    assert same < 5
    assert hidden != others
    assert Hiding(os.urandom).token_ids(b"") == b""


def test_one_trace_hides_equal_ids_alike_and_no_id_or_name_stands_in_the_file(
    decoder: Decoder, tmp_path: Path
) -> None:
    driver = traced(decoder, tmp_path / "trace")
    prompt = [11, 12, 13, 14] * 8
    for _ in range(2):
        driver.run(prompt, new_tokens_max=1, namespace=SECRET, conversation=b"chat/1")
    data = (tmp_path / "trace").read_bytes()
    assert SECRET not in data
    assert b"chat/1" not in data
    assert tokens.pack(prompt[:4]) not in data
    first, second = records(tmp_path / "trace")
    assert first.token_ids == second.token_ids
    assert first.stretches == second.stretches
    assert first.conversation == second.conversation
    shape = Counter(tokens.unpack(first.token_ids))
    assert sorted(shape.values()) == [8, 8, 8, 8]


def test_the_file_is_its_owners_alone_and_used_by_one_engine(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.touch(mode=0o644)
    writer = TraceWriter(path, SECTION, bytes_max=1 << 20)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="another engine writes it"):
        TraceWriter(path, SECTION, bytes_max=1 << 20)
    writer.close()
    link = tmp_path / "link"
    link.symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for bad in (link, tmp_path, tmp_path / "pipe", tmp_path / "no" / "trace"):
        with pytest.raises(ConfigError, match=r"engine\.trace_path"):
            TraceWriter(bad, SECTION, bytes_max=1 << 20)


def test_a_full_trace_ends_at_its_bound_and_the_engine_goes_on(
    decoder: Decoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = traced(decoder, tmp_path / "trace", bytes_max=600)
    for start in range(5, 15):
        assert driver.reason(driver.run(range(start, start + 20), new_tokens_max=2)) == "length"
    assert (tmp_path / "trace").stat().st_size <= 600
    assert 0 < len(records(tmp_path / "trace")) < 10
    assert [record.message for record in caplog.records] == ["trace_full"]


def test_of_a_damaged_trace_the_good_part_is_read_with_a_warning(
    decoder: Decoder, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    for _ in range(2):
        writer = TraceWriter(path, SECTION, bytes_max=1 << 20)
        driver = Driver(decoder, pages=PAGES, page_size=PAGE_SIZE, trace=writer)
        for start in (5, 9, 13):
            driver.run(range(start, start + 20), new_tokens_max=2)
        writer.close()
    whole = path.read_bytes()
    contents = read_trace(path)
    assert [len(part.requests) for part in contents.recorded] == [3, 3]
    assert not contents.warnings
    source = random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        if source.random() < 0.5:
            data[source.randrange(len(MAGIC), len(data))] ^= 1 << source.randrange(8)
        else:
            del data[source.randrange(len(MAGIC) + 60, len(data)) :]
        path.write_bytes(data)
        contents = read_trace(path)
        found = [request for part in contents.recorded for request in part.requests]
        # A file may happen to end between two records.
        assert len(found) < 6
        assert contents.warnings or len(data) < len(whole)
        for part in contents.recorded:
            sizes = Sizes(page_size=PAGE_SIZE, pages=PAGES, host_slots=0, disk_slots=0)
            Replay(sizes, Policy()).run(part.requests)


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    newer = msgspec.structs.replace(SECTION, format=FORMAT + 1)
    for data, reason in (
        (b"", "not a trace"),
        (b"hello" * 100, "not a trace"),
        (MAGIC, "nothing in it can be read"),
        (MAGIC + b"\xff" * 40, "nothing in it can be read"),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidTrace, match=reason):
            read_trace(path)
    path.unlink()
    TraceWriter(path, newer, bytes_max=1 << 20).close()
    with pytest.raises(InvalidTrace, match="format 2"):
        read_trace(path)
