"""Maintenance mode: `<data_dir>/maintenance`, held by the process that repairs the database.

While it is on, the server keeps finished turns in its journal. Owns the path, and who holds it: a
lock that the kernel gives up when its holder ends, however it ends, so no killed repair leaves a
server waiting. Never: writes a turn, or speaks to a database.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import DatabaseError

FILE_NAME = "maintenance"
TAKE_TIMEOUT_S = 1.0
TAKE_POLL_S = 0.005


def is_on(data_dir: Path) -> bool:
    """Whether a living process holds maintenance mode in this folder; costs a few microseconds.

    A file that nobody holds, or none, is off. Raises OSError when the file cannot be read.
    """
    try:
        descriptor = os.open(data_dir / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@contextmanager
def maintenance(data_dir: Path) -> Iterator[None]:
    """Maintenance mode is on in the block. Raises DatabaseError when another process holds it."""
    path = data_dir / FILE_NAME
    # Readable by the server, which may run as another user than the operator's command.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        # A reader that looks at this very moment holds the lock for microseconds.
        deadline = time.monotonic() + TAKE_TIMEOUT_S
        while not _lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                raise DatabaseError(
                    f"{path}: process {holder or 'unknown'} repairs the database already"
                )
            time.sleep(TAKE_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # The file stays: removing it would let two processes hold two locks.
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
