"""Lock files: one holder, named; stale, forged, linked and foreign files."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.errors import LockUnusable
from appliance.file_lock import FileLock, Holder, LockTaken

ROOT = Path(__file__).parents[2]
HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom appliance.file_lock import FileLock\n"
    "FileLock(Path(sys.argv[1]), purpose='a repair').acquire()\n"
    "print('held', flush=True)\ntime.sleep(60)\n"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's file needs root to make")


@contextmanager
def elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout as words:
        assert words.readline() == "held\n"
        yield holder
        holder.kill()
        holder.wait()


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "l", purpose="a repair"), FileLock(tmp_path / "l")
    assert second.holder() is None
    first.acquire()
    first.acquire()
    assert second.holder() == Holder(pid=os.getpid(), purpose="a repair")
    with pytest.raises(LockTaken, match=rf"a repair \(process {os.getpid()}\)"):
        second.acquire()
    first.release()
    first.release()
    assert second.holder() is None
    second.acquire()
    assert first.holder() == Holder(pid=os.getpid(), purpose="")
    assert str(first.holder()) == f"process {os.getpid()}"
    second.release()


def test_a_lock_ends_with_its_process_and_the_stale_name_in_its_file_is_no_obstacle(
    tmp_path: Path,
) -> None:
    lock = FileLock(tmp_path / "l")
    with elsewhere(tmp_path / "l") as holder:
        assert lock.holder() == Holder(pid=holder.pid, purpose="a repair")
        assert lock.is_open_in(holder.pid)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / "l").read_text() == f"{holder.pid}\na repair\n"
    assert lock.holder() is None
    assert not lock.is_open_in(holder.pid)
    lock.acquire()
    assert (tmp_path / "l").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_forged_name_is_not_a_process_that_has_the_file_and_tells_no_terminal_anything(
    tmp_path: Path,
) -> None:
    path, lock = tmp_path / "l", FileLock(tmp_path / "l")
    for text, told in (
        ("1\n\x1b[2Jroot's own\nmore", Holder(pid=1, purpose="[2Jroot's ownmore")),
        ("0\nx", Holder(pid=None, purpose="x")),
        ("-4", Holder(pid=None, purpose="")),
        ("٣\n", Holder(pid=None, purpose="")),
        ("", Holder(pid=None, purpose="")),
        ("\xff\xfe" * 500, Holder(pid=None, purpose="")),
    ):
        path.write_text(text, encoding="latin-1" if "\xff" in text else "utf-8")
        with path.open("r+") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert lock.holder() == told
            with pytest.raises(LockTaken):
                lock.acquire()
    assert not lock.is_open_in(os.getppid())


def test_links_of_both_kinds_folders_and_pipes_are_refused_and_stay_as_they_were(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.link(victim, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "hard", "folder", "pipe"):
        with pytest.raises(LockUnusable, match=f"{name} is to be a lock file"):
            FileLock(tmp_path / name).acquire()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "link").holder()


def test_those_who_only_look_keep_nobody_from_taking_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "l")
    lock.acquire()
    lock.release()
    looking = threading.Event()

    def look() -> None:
        while not looking.is_set():
            FileLock(tmp_path / "l").holder()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            lock.acquire()
            lock.release()
    finally:
        looking.set()
        for thread in threads:
            thread.join()


@needs_root
def test_a_lock_that_root_made_serves_the_folders_owner_afterwards(tmp_path: Path) -> None:
    os.chown(tmp_path, 61000, 61000)
    before = os.umask(0o077)
    try:
        for path, mode in ((tmp_path / "new", 0o644), (tmp_path / "left", 0o600)):
            if path.name == "left":
                path.touch()  # As an earlier root's: it is mended too.
            lock = FileLock(path, mode=mode)
            lock.acquire()
            lock.release()
            status = path.stat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (61000, mode)
    finally:
        os.umask(before)


@needs_root
def test_a_lock_file_of_another_user_is_told_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.touch(mode=0o600)
    for folder in tmp_path.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    told = _as_stranger(path)
    assert told == f"LockUnusable: {path} belongs to root (uid 0): run this as that user or as root"
    path.unlink()
    told = _as_stranger(path)
    assert told.startswith(f"LockUnusable: {path}: this user may not make it")


def _as_stranger(path: Path) -> str:
    """What another user is told who takes the lock; a forked process, who may not reach our files."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(61000)
            os.setuid(61000)
            FileLock(path).acquire()
            os.write(writing, b"held")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, encoding="utf-8") as words:
        return words.read()
