"""A lock file: held by one process, which it names, and given up by the kernel when that ends.

Owns the file, and never removes it: two processes could then hold two locks. Never: follows a link, or
believes what the file says to be more than a name for people.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from appliance.durable import give_to_owner_of
from appliance.errors import LockUnusable

NAME_BYTES_MAX = 200
PROBE_S = 1.0
"""Whoever only looks holds a lock for microseconds: it is waited for, this long at most."""

PROBE_POLL_S = 0.002
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock, as its file says: a process (None where it does not say), and what for."""

    pid: int | None
    purpose: str

    def __str__(self) -> str:
        """As a message names it."""
        if self.pid is None:
            return self.purpose or "another process"
        return f"{self.purpose} (process {self.pid})" if self.purpose else f"process {self.pid}"


class LockTaken(Exception):
    """Another process holds the lock. Its user says so in words of its own."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class FileLock:
    """The lock file `path`; `purpose` is what others are told who find it taken, `mode` the file's."""

    def __init__(self, path: Path, *, purpose: str = "", mode: int = 0o600) -> None:
        self.path = path
        self._purpose = purpose
        self._mode = mode
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock unless it is ours already. Raises LockTaken, LockUnusable, OSError."""
        if self._descriptor is not None:
            return
        descriptor = self._open()
        try:
            self._take(descriptor)
            named = f"{os.getpid()}\n" + (f"{self._purpose}\n" if self._purpose else "")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, named.encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up, if it is ours."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Holder | None:
        """Who holds the lock now, None when nobody does; costs microseconds. Raises OSError."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return None
        try:
            return None if _locked(descriptor, fcntl.LOCK_SH) else _named(descriptor)
        finally:
            os.close(descriptor)

    def is_open_in(self, pid: int) -> bool:
        """Whether that process has the file open: what a file says may be stale, or forged.

        Raises PermissionError where the process may not be looked at.
        """
        try:
            status = os.lstat(self.path)
            return any(
                os.path.samestat(opened.stat(), status)
                for opened in Path(f"/proc/{pid}/fd").iterdir()
                if opened.exists()
            )
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _open(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, self._mode)
        except PermissionError as error:
            raise LockUnusable(_denied(self.path)) from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise LockUnusable(_not_a_file(self.path)) from error
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise LockUnusable(_not_a_file(self.path))
            self._own(descriptor, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _own(self, descriptor: int, status: os.stat_result) -> None:
        """A file that root makes is to serve the folder's owner too, whatever root's umask is."""
        if status.st_uid != os.geteuid():
            return
        os.fchmod(descriptor, self._mode)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            give_to_owner_of(folder, descriptor)
        finally:
            os.close(folder)

    def _take(self, descriptor: int) -> None:
        deadline = time.monotonic() + PROBE_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            # One that holds it for good leaves no room for a look either.
            if not _locked(descriptor, fcntl.LOCK_SH) or time.monotonic() > deadline:
                raise LockTaken(_named(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            time.sleep(PROBE_POLL_S)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(descriptor: int) -> Holder:
    text = os.pread(descriptor, NAME_BYTES_MAX, 0).decode("utf-8", "replace")
    pid, _, purpose = text.partition("\n")
    return Holder(
        pid=int(pid) if pid.isascii() and pid.isdecimal() and int(pid) > 0 else None,
        # Whoever owns the folder may have written it, and it is shown on root's terminal.
        purpose="".join(filter(str.isprintable, purpose)).strip(),
    )


def _denied(path: Path) -> str:
    try:
        uid = path.lstat().st_uid
    except OSError:
        return (
            f"{path}: this user may not make it; run this as the owner of {path.parent}, or as root"
        )
    try:
        owner = f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        owner = f"uid {uid}"
    return f"{path} belongs to {owner}: run this as that user or as root"


def _not_a_file(path: Path) -> str:
    return f"{path} is to be a lock file, and is a link or no file at all: see who made it, and remove it"
