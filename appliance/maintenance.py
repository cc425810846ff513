"""Maintenance mode: `<data_dir>/maintenance`, held by the process that repairs the database.

While it is on, the server keeps finished turns in its journal. Owns the path, and who holds it: a
lock that the kernel gives up when its holder ends, however it ends, so no killed repair leaves a
server waiting. Never: writes a turn, or speaks to a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import DatabaseError
from appliance.file_lock import FileLock, LockTaken

FILE_NAME = "maintenance"
PURPOSE = "appliance db run"


def is_on(data_dir: Path) -> bool:
    """Whether a living process holds maintenance mode in this folder; costs a few microseconds.

    A file that nobody holds, or none, is off. Raises OSError when the file cannot be read.
    """
    return _lock(data_dir).holder() is not None


@contextmanager
def maintenance(data_dir: Path) -> Iterator[None]:
    """Maintenance mode is on in the block. Raises DatabaseError when another process holds it."""
    lock = _lock(data_dir)
    try:
        lock.acquire()
    except LockTaken as error:
        raise DatabaseError(f"{lock.path}: {error} repairs the database already") from error
    try:
        yield
    finally:
        lock.release()


def _lock(data_dir: Path) -> FileLock:
    # Readable by the server, which may run as another user than the operator's command.
    return FileLock(data_dir / FILE_NAME, purpose=PURPOSE, mode=0o644)
