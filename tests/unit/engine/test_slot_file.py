"""The disk tier's file: whatever happens to it, a page read from it is the page that was written."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import time
from collections.abc import Callable
from hashlib import sha256, shake_128
from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.engine import slot_file
from appliance.engine.slot_file import HEADER_BYTES, RECORD_BYTES, SlotFile, SlotShape, slots_in
from appliance.errors import ConfigError

SHAPE = SlotShape(
    model_fingerprint="model", kv_dtype="float32", page_size=16, content_bytes=3000, slots=8
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv" / "slots"


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def content(number: int, size: int = SHAPE.content_bytes) -> memoryview:
    """What every test writes for a page: its key says it all."""
    return memoryview(bytearray(shake_128(key(number)).digest(size)))


def read(file: SlotFile, slot: int, number: int) -> memoryview | None:
    buffer = memoryview(bytearray(SHAPE.content_bytes))
    return buffer if file.read(slot, key(number), buffer) else None


def written(path: Path, pages: int = 5) -> None:
    """A closed file with page n in slot n."""
    file = SlotFile(path, SHAPE)
    for number in range(pages):
        file.write(number, key(number), number, content(number))
    file.close()


def damage(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def test_pages_come_back_in_the_order_of_their_arrivals_after_the_file_was_closed(
    path: Path,
) -> None:
    file = SlotFile(path, SHAPE)
    for slot, arrival in ((3, 7), (0, 9), (5, 8)):
        file.write(slot, key(slot), arrival, content(slot))
    file.close()
    file = SlotFile(path, SHAPE)
    assert file.pages() == [(key(3), 3, 7), (key(5), 5, 8), (key(0), 0, 9)]
    assert [read(file, slot, slot) for slot in (3, 5, 0)] == [content(3), content(5), content(0)]
    assert read(file, 3, 5) is None, "another page's key"
    assert read(file, 1, 1) is None, "an empty slot"
    file.close()


def test_of_two_slots_with_one_page_the_newer_counts(path: Path) -> None:
    file = SlotFile(path, SHAPE)
    for slot, arrival in ((1, 5), (2, 6), (4, 3)):
        file.write(slot, key(1), arrival, content(1))
    assert file.pages() == [(key(1), 2, 6)]
    file.close()


def test_the_file_is_the_owners_alone_and_as_large_as_its_shape_says(path: Path) -> None:
    os.umask(previous := os.umask(0))
    del previous
    SlotFile(path, SHAPE).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size == SHAPE.file_bytes
    assert path.stat().st_blocks * 512 >= SHAPE.file_bytes, "the room is taken at the start"
    path.chmod(0o644)
    SlotFile(path, SHAPE).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("budget", [10**6, 10**8, 5 * 10**9])
@pytest.mark.parametrize("content_bytes", [3000, 200_000, 737_280])
def test_the_file_keeps_its_budget_and_uses_it(budget: int, content_bytes: int) -> None:
    slots = slots_in(budget, content_bytes)
    if slots == 0:
        assert budget < content_bytes + 3 * HEADER_BYTES
        return
    size = replace(SHAPE, content_bytes=content_bytes, slots=slots).file_bytes
    assert budget - content_bytes - 3 * HEADER_BYTES <= size <= budget


def test_every_flipped_bit_costs_at_most_its_own_page(path: Path) -> None:
    written(path)
    source = random.Random(1)
    places = [HEADER_BYTES + 2 * RECORD_BYTES + byte for byte in range(RECORD_BYTES)]
    places += [
        SHAPE.contents_start + 2 * SHAPE.content_bytes + source.randrange(SHAPE.content_bytes)
        for _ in range(60)
    ]
    for at in places:
        bit = source.randrange(8)
        damage(path, at, bit)
        file = SlotFile(path, SHAPE)
        found = [read(file, slot, slot) for slot in range(5)]
        listed = {page[0] for page in file.pages()}
        assert found == [content(0), content(1), None, content(3), content(4)]
        assert listed >= {key(0), key(1), key(3), key(4)}
        assert listed <= {key(number) for number in range(5)}
        file.close()
        damage(path, at, bit)


def test_a_page_of_another_slot_or_tenant_that_is_put_in_place_is_not_read(path: Path) -> None:
    written(path)
    data = path.read_bytes()

    def slot(number: int, start: int, size: int) -> slice:
        return slice(start + number * size, start + (number + 1) * size)

    records = [slot(n, HEADER_BYTES, RECORD_BYTES) for n in (1, 3)]
    contents = [slot(n, SHAPE.contents_start, SHAPE.content_bytes) for n in (1, 3)]
    for swapped in (records, contents):
        forged = bytearray(data)
        forged[swapped[0]] = data[swapped[1]]
        path.write_bytes(forged)
        file = SlotFile(path, SHAPE)
        assert read(file, 1, 1) is None
        assert read(file, 1, 3) is None
        assert read(file, 3, 3) == content(3)
        file.close()
    forged = bytearray(data)
    record = bytearray(data[records[1]])
    record[24:56] = key(1)
    record[:8] = sha256(record[8:]).digest()[:8]
    forged[records[0]], forged[contents[0]] = record, data[contents[1]]
    path.write_bytes(forged)
    file = SlotFile(path, SHAPE)
    assert read(file, 1, 1) is None, "its key was changed, and its check made to fit"
    file.close()
    forged = bytearray(data)
    for swapped in (records, contents):
        forged[swapped[0]] = data[swapped[1]]
    path.write_bytes(forged)
    file = SlotFile(path, SHAPE)
    assert read(file, 1, 1) is None, "whole, but not the page that was asked for"
    file.close()


@pytest.mark.parametrize(
    "field", ["model_fingerprint", "kv_dtype", "page_size", "content_bytes", "slots"]
)
def test_a_file_of_another_shape_is_emptied_and_the_log_says_why(
    path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    written(path)
    value = getattr(SHAPE, field)
    other = replace(SHAPE, **{field: value + 1 if isinstance(value, int) else value + "x"})
    file = SlotFile(path, other)
    assert file.pages() == []
    assert path.stat().st_size == other.file_bytes
    assert caplog.records[-1].__dict__["reason"] == f"another {field}"
    file.close()
    back = SlotFile(path, SHAPE)
    assert back.pages() == [], "what was emptied stays so"
    back.close()


def test_pages_of_before_a_reset_are_gone_for_good(path: Path) -> None:
    written(path)
    file = SlotFile(path, SHAPE)
    file.reset()
    file.write(6, key(6), 1, content(6))
    assert read(file, 2, 2) is None
    file.close()
    file = SlotFile(path, SHAPE)
    assert [page[0] for page in file.pages()] == [key(6)]
    file.close()


def test_of_a_file_that_was_cut_off_what_is_left_is_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for size in (0, 10, HEADER_BYTES + 3 * RECORD_BYTES + 50, SHAPE.contents_start + 7000):
        written(path)
        os.truncate(path, size)
        file = SlotFile(path, SHAPE)
        whole = size - SHAPE.contents_start >= 0
        found = [read(file, slot, slot) for slot in range(5)]
        assert found[:2] == ([content(0), content(1)] if whole else [None, None])
        assert found[2:] == [None] * 3
        assert ("disk_tier_damaged_or_changed" in caplog.text) == (size > 0)
        file.close()
        path.unlink()
        caplog.clear()


@pytest.mark.parametrize(
    "damaged", [b"", b"x" * 5000, b"\0" * HEADER_BYTES, bytes(range(256)) * 200]
)
def test_a_file_of_something_else_is_emptied(path: Path, damaged: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damaged)
    file = SlotFile(path, SHAPE)
    assert file.pages() == []
    file.write(0, key(0), 1, content(0))
    assert read(file, 0, 0) == content(0)
    file.close()


def test_two_engines_cannot_have_one_file(path: Path) -> None:
    file = SlotFile(path, SHAPE)
    with pytest.raises(ConfigError, match="another engine"):
        SlotFile(path, SHAPE)
    file.close()
    SlotFile(path, SHAPE).close()


def test_what_is_no_file_is_told_by_the_settings_name(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"engine\.disk_cache_bytes"):
        SlotFile(path, SHAPE)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="regular file"):
        SlotFile(path, SHAPE)
    path.unlink()


def test_what_must_stay_free_on_the_disk_is_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reserve that no disk has, so that the file itself stays small whatever the code does.
    monkeypatch.setattr(slot_file, "DISK_RESERVE_BYTES", 2**60)
    with pytest.raises(ConfigError, match=rf"engine\.disk_cache_bytes.*{SHAPE.file_bytes}.*free"):
        SlotFile(path, SHAPE)
    monkeypatch.setattr(slot_file, "DISK_RESERVE_BYTES", 0)
    SlotFile(path, SHAPE).close()
    monkeypatch.setattr(slot_file, "DISK_RESERVE_BYTES", 2**60)
    SlotFile(path, SHAPE).close()


def test_a_limit_on_file_sizes_is_told_by_the_settings_name(path: Path) -> None:
    def told() -> bool:
        limit = SHAPE.file_bytes // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            SlotFile(path, SHAPE)
        except ConfigError as error:
            return "engine.disk_cache_bytes" in error.message
        return False

    assert in_a_child(told) == 0


def in_a_child(work: Callable[[], bool], *, kill_after_s: float | None = None) -> int:
    """Exit code of a fork that says whether `work` went well; its signal's number, negative."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_writer_that_is_killed_at_any_moment_leaves_only_whole_pages(path: Path) -> None:
    size = 2_000_000
    shape = replace(SHAPE, content_bytes=size, slots=4)
    source = random.Random(5)
    pages = [content(number, size) for number in range(6)]
    found = cut_off = 0
    rounds = 0
    while rounds < 12 or cut_off == 0:
        rounds += 1
        assert rounds < 100, "no write is ever cut off: the test proves nothing"

        def overwrite(seed: int = rounds) -> bool:
            file = SlotFile(path, shape)
            numbers = random.Random(seed)
            for arrival in range(10**6):
                number = numbers.randrange(6)
                file.write(numbers.randrange(4), key(number), arrival, pages[number])
            return False

        assert in_a_child(overwrite, kill_after_s=source.uniform(0.05, 0.12)) == -signal.SIGKILL
        file = SlotFile(path, shape)
        buffer = memoryview(bytearray(size))
        for page_key, slot, _ in file.pages():
            if file.read(slot, page_key, buffer):
                found += 1
                assert buffer == pages[int.from_bytes(page_key, "little")]
            else:
                cut_off += 1
        file.close()
    assert found >= rounds
