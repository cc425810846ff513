"""The journal's folder: what was acknowledged is there after any end, and one process has it."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from appliance.durable import sync_folder
from appliance.errors import JournalFull, JournalHeld
from appliance.file_lock import Holder
from appliance.store import journal_file
from appliance.store.journal_aside import DAMAGED_PREFIX, TORN_PREFIX
from appliance.store.journal_file import (
    FILE_NAME,
    MARKS_BYTES,
    PURPOSE,
    RESERVE_BYTES,
    JournalFile,
    holder_of,
    read_journal,
)
from appliance.store.journal_frame import HEADER_BYTES
from appliance.store.journal_label import LABEL_NAME

LIMIT = 64 << 20
ROOT = Path(__file__).parents[3]


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder that syncs at once where there is one: for tests that sync some hundred times."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="appliance-test-", dir=shared) as name:
        yield Path(name)


@contextmanager
def opened(folder: Path, *, bytes_max: int = LIMIT) -> Iterator[JournalFile]:
    file = JournalFile(folder, bytes_max=bytes_max)
    try:
        yield file
    finally:
        file.close()


def payloads(file: JournalFile) -> list[bytes]:
    return [one.payload for one in file.frames]


def test_what_was_appended_is_there_after_the_next_opening_in_order(tmp_path: Path) -> None:
    with opened(tmp_path / "journal") as file:
        assert file.append([b"a", b"b"]) == [1, 2]
        file.mark(b"m")
        assert file.append([b"c"]) == [4]
    with opened(tmp_path / "journal") as file:
        assert payloads(file) == [b"a", b"b", b"m", b"c"]
        assert file.append([b"d"]) == [5]
    with opened(tmp_path / "journal") as file:
        assert payloads(file) == [b"a", b"b", b"m", b"c", b"d"]
    for path in (tmp_path / "journal").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700


def test_after_a_cut_at_any_byte_the_whole_frames_are_kept_and_writing_goes_on(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "RESERVE_BYTES", 4096)
    with opened(in_memory) as file:
        file.append([b"first", b"second"])
        end = file.used_bytes
    whole = (in_memory / FILE_NAME).read_bytes()[:end]
    for cut in range(HEADER_BYTES, end + 1):
        (in_memory / FILE_NAME).write_bytes(whole[:cut])
        with opened(in_memory) as file:
            kept = payloads(file)
            assert kept == [b"first", b"second"][: len(kept)]
            file.append([b"later"])
        found = read_journal(in_memory)
        assert found is not None
        assert [one.payload for one in found.frames] == [*kept, b"later"]
        assert not found.torn_bytes
    assert not list(in_memory.glob(f"{DAMAGED_PREFIX}*"))


def test_a_bad_frame_in_the_middle_is_kept_aside_and_the_others_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.append([b"first", b"second", b"third"])
    data = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(data.replace(b"second", b"sEcond"))
    with opened(tmp_path) as file:
        assert payloads(file) == [b"first", b"third"]
        assert [one.number for one in file.frames] == [1, 3]
        assert file.append([b"fourth"]) == [4]
    (aside,) = tmp_path.glob(f"{DAMAGED_PREFIX}*")
    assert b"sEcond" in aside.read_bytes()
    with opened(tmp_path) as file:
        assert payloads(file) == [b"first", b"third", b"fourth"]
    assert len(list(tmp_path.glob(f"{DAMAGED_PREFIX}*"))) == 1


def test_a_bad_last_frame_is_kept_aside_and_one_that_was_not_written_out_too(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as file:
        file.append([b"first", b"last one"])
        end = file.used_bytes
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole.replace(b"last one", b"lAst one"))
    with opened(tmp_path) as file:
        assert payloads(file) == [b"first"]
        assert file.append([b"next"]) == [2]
    (damaged,) = tmp_path.glob(f"{DAMAGED_PREFIX}*")
    assert damaged.read_bytes().endswith(b"lAst one")
    assert not list(tmp_path.glob(f"{TORN_PREFIX}*"))
    (tmp_path / FILE_NAME).write_bytes(whole[: end - 3])
    for _ in range(2):
        with opened(tmp_path) as file:
            assert payloads(file) == [b"first"]
    (torn,) = tmp_path.glob(f"{TORN_PREFIX}*")
    assert torn.read_bytes().endswith(b"last ")
    assert list(tmp_path.glob(f"{DAMAGED_PREFIX}*")) == [damaged]


def test_on_a_full_disk_a_torn_end_keeps_no_journal_from_opening(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.append([b"first", b"x" * 20_000])
        end = file.used_bytes
    os.truncate(tmp_path / FILE_NAME, end - 1)
    with disk_of(10_000), opened(tmp_path) as file:
        assert payloads(file) == [b"first"]
    assert not list(tmp_path.glob(f"{TORN_PREFIX}*"))


def test_a_file_that_is_no_journal_is_kept_aside_whole(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"something else" * 9)
    with opened(tmp_path) as file:
        assert payloads(file) == []
    (aside,) = tmp_path.glob(f"{DAMAGED_PREFIX}*")
    assert aside.read_bytes() == b"something else" * 9


def test_a_second_process_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with opened(tmp_path) as file:
        file.append([b"mine"])
        with pytest.raises(JournalHeld, match=f"process {os.getpid()}"):
            JournalFile(tmp_path, bytes_max=LIMIT)
        assert holder_of(tmp_path) == Holder(pid=os.getpid(), purpose=PURPOSE)
        found = read_journal(tmp_path)
        assert found is not None
        assert [one.payload for one in found.frames] == [b"mine"]
    assert holder_of(tmp_path) is None


def test_at_its_limit_nothing_of_a_group_is_written_and_marks_still_are(tmp_path: Path) -> None:
    with opened(tmp_path, bytes_max=1000) as file:
        assert file.append([b"x" * 900]) == [1]
        room = file.room_bytes
        with pytest.raises(JournalFull, match="1000"):
            file.append([b"y", b"z" * 100])
        assert file.room_bytes == room
        file.mark(b"m" * 100)
        assert file.room_bytes == 0
        file.empty()
        assert file.append([b"again"]) == [3]
    with opened(tmp_path) as file:
        assert payloads(file) == [b"again"]


def test_a_rewritten_file_has_the_kept_frames_under_their_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.append([b"a", b"b", b"c"])
        file.rewrite([(2, b"b")])
        assert file.append([b"d"]) == [4]
    with opened(tmp_path) as file:
        assert [(one.number, one.payload) for one in file.frames] == [(2, b"b"), (4, b"d")]


@contextmanager
def disk_of(bytes_max: int) -> Iterator[None]:
    """No file grows beyond this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def filled(file: JournalFile, chunk: bytes) -> int:
    """Append until the journal is full; how often it was not."""
    written = 0
    with suppress(JournalFull):
        while True:
            file.append([chunk])
            written += 1
    return written


def test_on_a_full_disk_the_reserve_is_used_then_entries_are_refused_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    chunk = b"x" * (1 << 20)
    with opened(tmp_path) as file:
        with disk_of(HEADER_BYTES + RESERVE_BYTES):
            written = filled(file, chunk)
            assert written == RESERVE_BYTES // len(chunk) - 2
            assert file.room_bytes < len(chunk)
            file.mark(b"m" * (MARKS_BYTES // 2))  # what makes room is still written
            small = file.append([b"y" * 1000])
        file.top_up()
        assert file.room_bytes > RESERVE_BYTES
        assert file.append([chunk]) == [small[0] + 1]
    with opened(tmp_path) as file:
        assert len(file.frames) == written + 3


def test_what_is_acknowledged_was_synced_and_a_group_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def wrapper(*arguments: object) -> object:
            deeds.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, wrapper)

    with opened(tmp_path) as file:
        noted("pwrite")
        noted("fdatasync")
        file.append([b"a", b"b", b"c"])
        assert deeds == ["pwrite", "fdatasync"]


def test_a_write_that_fails_leaves_no_frame_to_come_to_light_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as file:
        file.append([b"kept"])
        used = file.used_bytes
        for broken in ("pwrite", "fdatasync"):
            with monkeypatch.context() as patch:
                patch.setattr(os, broken, _fails(getattr(os, broken)))
                with pytest.raises(OSError, match="I/O"):
                    file.append([b"lost" * 30])
            assert file.used_bytes == used
            found = read_journal(tmp_path)
            assert found is not None
            assert [one.payload for one in found.frames] == [b"kept"]
            assert not found.torn_bytes
        file.append([b"next"])
    with opened(tmp_path) as file:
        assert payloads(file) == [b"kept", b"next"]


def test_a_new_file_whose_name_may_not_last_takes_nothing_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as file:
        file.append([b"kept", b"done"])
        with monkeypatch.context() as patch:
            patch.setattr(journal_file, "sync_folder", _fails(sync_folder))
            for _ in range(2):
                with pytest.raises(OSError, match="I/O"):
                    file.rewrite([(1, b"kept")])
                with pytest.raises(OSError, match="I/O"):
                    file.append([b"lost"])
        synced: list[Path] = []
        monkeypatch.setattr(journal_file, "sync_folder", synced.append)
        assert file.append([b"next"]) == [3]
        assert synced == [tmp_path]
        found = read_journal(tmp_path)
        assert found is not None
        assert [one.payload for one in found.frames] == [b"kept", b"next"]
    with opened(tmp_path) as file:
        assert payloads(file) == [b"kept", b"next"]


def test_a_new_file_that_cannot_be_put_in_place_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as file:
        file.append([b"kept", b"done"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _fails(os.fsync))
            with pytest.raises(OSError, match="I/O"):
                file.rewrite([(1, b"kept")])
        assert file.append([b"next"]) == [3]
    with opened(tmp_path) as file:
        assert payloads(file) == [b"kept", b"done", b"next"]


def _fails(real: object) -> object:
    """The call does its work, and then says that it failed."""
    assert callable(real)
    call = real

    def wrapper(*arguments: object) -> None:
        call(*arguments)
        raise OSError(5, "I/O error")

    return wrapper


def test_a_damaged_begin_costs_nothing_and_is_told(in_memory: Path) -> None:
    with opened(in_memory) as file:
        file.append([b"first", b"second"])
        file.bind("here")
        end = file.used_bytes
    whole = (in_memory / FILE_NAME).read_bytes()[:end]
    for at in range(HEADER_BYTES):
        (in_memory / FILE_NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        looked_at = read_journal(in_memory)
        assert looked_at is not None
        assert looked_at.damaged == ((0, HEADER_BYTES),)
        with opened(in_memory) as file:
            assert payloads(file) == [b"first", b"second"]
            assert file.append([b"third"]) == [3]
        with opened(in_memory) as file:
            assert payloads(file) == [b"first", b"second", b"third"]
            assert file.database == "here"
    assert len(list(in_memory.glob(f"{DAMAGED_PREFIX}0-*"))) == HEADER_BYTES
    # A block of the disk that is gone takes what was in it.
    (in_memory / FILE_NAME).write_bytes(b"\0" * (HEADER_BYTES + 9) + whole[HEADER_BYTES + 9 :])
    with opened(in_memory) as file:
        assert payloads(file) == [b"second"]


def test_a_label_that_is_damaged_or_gone_is_made_again_and_costs_nothing(tmp_path: Path) -> None:
    label = tmp_path / LABEL_NAME
    with opened(tmp_path) as file:
        file.bind("here")
        file.append([b"kept"])
    told = label.read_bytes()
    spoilt = [told[:at] + bytes([told[at] ^ 4]) + told[at + 1 :] for at in range(0, len(told), 7)]
    for content in (*spoilt, b"", b"null\n", None):
        label.unlink() if content is None else label.write_bytes(content)
        with opened(tmp_path) as file:
            assert payloads(file) == [b"kept"]
            assert file.database is None
            file.bind("here")
        assert label.read_bytes() == told
    assert not list(tmp_path.glob(f"{DAMAGED_PREFIX}*"))


def test_on_a_full_disk_no_label_is_left_that_is_not_true(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.bind("here")
        with disk_of(10):
            file.bind("there")
        assert file.database == "there"
    with opened(tmp_path) as file:
        assert file.database is None


def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(in_memory: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from appliance.store.journal_file import JournalFile\n"
        "file = JournalFile(Path(sys.argv[1]), bytes_max=1 << 28)\n"
        "seen = [one.payload for one in file.frames]\n"
        "n = len(seen)\n"
        "print('had', n, flush=True)\n"
        "while True:\n"
        "    size = 1 + n % 3\n"
        "    file.append([b'%d ' % (n + i) + b'x' * (n % 5000) for i in range(size)])\n"
        "    n += size\n"
        "    print(n, flush=True)\n"
    )
    told = 0
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", script, in_memory],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            had = int(process.stdout.readline().split()[1])
            assert had >= told
            for _ in range(20 + 13 * round_):
                told = int(process.stdout.readline())
            process.kill()
            process.wait()
            for line in process.stdout:
                if line.endswith("\n"):
                    told = int(line)
    with opened(in_memory, bytes_max=1 << 28) as file:
        found = payloads(file)
        assert len(found) >= told
        assert [int(one.split()[0]) for one in found] == list(range(len(found)))
