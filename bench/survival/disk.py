"""A small disk of its own for the data folder: it can be full, and it can lose its power.

An ext4 file system in a file. `cut` is EXT4_IOC_SHUTDOWN without flushing its log, as the file system's
own crash tests do it: what was not synced by then is lost, what was synced is there after the next mount.
The page cache of the machine below is not dropped: what the small disk was told to sync, counts as on it.
Never: touches another disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from appliance.dbops.folder import opened
from appliance.durable import sync_folder

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) in the kernel's fs/ext4/ext4.h."""
_WITHOUT_FLUSH = 2
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
UNMOUNT_S_MAX = 15.0
PROGRAMS = ("mkfs.ext4", "mount", "umount")


def why_not() -> str | None:
    """What this machine lacks for such a disk; None when it can be tried."""
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    return None if Path("/dev/loop-control").exists() else "no loop devices"


class SmallDisk:
    """The disk, mounted at `folder`. Use as a context."""

    def __init__(self, image: Path, folder: Path, *, size_bytes: int) -> None:
        self.folder = folder
        self._image = image
        self._size_bytes = size_bytes

    def __enter__(self) -> SmallDisk:
        """Raises OSError when this machine lets nobody make one."""
        _own_mounts()
        with self._image.open("wb") as file:
            file.truncate(self._size_bytes)
        # No part is kept for root: full is full for everybody.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", str(self._image))
        self.folder.mkdir()
        self._mount()
        # PostgreSQL runs as another user, and walks through.
        self.folder.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            _run("umount", "--lazy", str(self.folder))
        self._image.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """What anybody may still write."""
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def fill(self) -> None:
        """Take all that is free."""
        size = self.free_bytes
        with (self.folder / "ballast").open("ab") as file:
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
                else:
                    file.seek(0, os.SEEK_END)

    def empty(self) -> None:
        """Give back what `fill` took, for good: a power cut must not bring it back."""
        (self.folder / "ballast").unlink(missing_ok=True)
        sync_folder(self.folder)

    def cut(self) -> None:
        """The power goes: nothing is written from now on, and what was not synced never was."""
        with opened(self.folder) as here:
            fcntl.ioctl(here.descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))

    def restore(self) -> None:
        """The power comes back: the file system's own log is replayed. No process may use it yet."""
        until = time.monotonic() + UNMOUNT_S_MAX
        while True:
            try:
                _run("umount", str(self.folder))
                break
            except OSError:
                # The last thread of a killed process is still on its way out.
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))


def _own_mounts() -> None:
    """A mount namespace for this process and its children, which ends with the last of them.

    Nobody else then holds the file system when it is unmounted, as any new namespace would.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_CLONE_NEWNS) != 0
        or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"a mount namespace: {os.strerror(number)}")


def _run(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise OSError(f"{words[0]}: {(ended.stderr or ended.stdout).strip()}")
