"""Folders and files at the edge of a cluster: safe writes, owners, and the lock.

A cluster's folder may belong to a less trusted user than this process, so links in it are never followed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from appliance.errors import DatabaseError


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
    """Add to the end of a file that exists; raises OSError when it is a link."""
    with_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, dir_fd=with_folder), "w", encoding="utf-8") as file:
            file.write(text)
    finally:
        os.close(with_folder)


def give_to(folder: Path, *, uid: int, gid: int) -> None:
    """Change the owner of a folder and all in it; links are changed, not followed."""
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
        os.fchown(descriptor, uid, gid)


def sync_folder(folder: Path) -> None:
    """Make names created in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


class FolderLock:
    """The lock file `path` of `folder`, held by one process; the kernel gives it up when that ends."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock unless it is ours already; raises DatabaseError when another process has it."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DatabaseError(
                f"{self._folder} is in use by another appliance (process {holder})"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up. Its file stays: removing it would let two processes hold two locks."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
