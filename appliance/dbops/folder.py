"""Folders and files at the edge of a cluster: safe writes, owners, and the lock.

A cluster's folder may belong to a less trusted user than this process, so links in it are never followed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import DatabaseError

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""renameat2(2)."""


def replace_file(folder: Path, name: str, text: str, *, uid: int, gid: int) -> None:
    """Write `folder/name` whole and durably; whatever stood there, a link too, is replaced."""
    temporary = f".{name}.new"
    with_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _remove(temporary, with_folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600, dir_fd=with_folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchown(descriptor, uid, gid)
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=with_folder, dst_dir_fd=with_folder)
        os.fsync(with_folder)
    finally:
        os.close(with_folder)


def append_text(folder: Path, name: str, text: str) -> None:
    """Add durably to the end of a file that exists; raises OSError when it is a link."""
    with_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, dir_fd=with_folder), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    finally:
        os.close(with_folder)


def give_to(folder: Path, *, uid: int, gid: int) -> None:
    """Change the owner of a folder and all in it; links are changed, not followed."""
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
        os.fchown(descriptor, uid, gid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """An open folder: a path to it for children that inherit the descriptor, and the descriptor."""

    path: str
    descriptor: int


@contextmanager
def opened(folder: Path) -> Iterator[Here]:
    """A folder that children can reach who could not walk its path, and however long that is.

    Not `/proc/self/cwd`: programs of PostgreSQL before 16 change their working folder at the start, and
    cannot come back to one that they may not walk to.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Here(path=f"/proc/self/fd/{descriptor}", descriptor=descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make names created in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(first: Path, second: Path) -> None:
    """Let two folders of one file system swap their names, at once where the file system can.

    Where it cannot (NFS), `first` is missing for a moment in between.
    """
    result = _libc.renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if result != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(first))
        between = second.with_name(f"{second.name}.swap")
        first.rename(between)
        second.rename(first)
        between.rename(second)
    sync_folder(first.parent)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


ANOTHER_APPLIANCE = "another appliance"
"""Who holds a lock, where it is nobody more special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a lock, and what for."""

    pid: int
    purpose: str


class FolderLock:
    """The lock file `path` of `folder`, held by one process; the kernel gives it up when that ends.

    `purpose` is what others are told who find it taken.
    """

    def __init__(self, path: Path, folder: Path, *, purpose: str = ANOTHER_APPLIANCE) -> None:
        self._path = path
        self._folder = folder
        self._purpose = purpose
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock unless it is ours already; raises DatabaseError when another process has it."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            told = "another process"
            if holder is not None:
                told = f"{holder.purpose} (process {holder.pid})"
            raise DatabaseError(f"{self._folder} is in use by {told}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{self._purpose}\n".encode(), 0)
        self._descriptor = descriptor

    def holder(self) -> Holder | None:
        """Who holds the lock now; None when nobody does, or only just."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_holder(descriptor)
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Give the lock up. Its file stays: removing it would let two processes hold two locks."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_holder(descriptor: int) -> Holder | None:
    pid, _, purpose = os.pread(descriptor, 200, 0).decode("utf-8", "replace").partition("\n")
    if not pid.isdecimal():
        return None
    return Holder(pid=int(pid), purpose=purpose.strip() or ANOTHER_APPLIANCE)
