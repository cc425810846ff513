"""The journal's folder on disk: one file of frames, held by one process.

Owns the lock, the order of frames, and what is kept aside. What `append` has returned for is on the
disk. Plain calls that block; whoever uses it takes care that one runs at a time. Never: reads what
a payload means.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from appliance.durable import put_file, replace_file, sync_folder, write_all
from appliance.errors import JournalDamaged, JournalFull, JournalHeld
from appliance.file_lock import FileLock, Holder, LockTaken
from appliance.store.journal_frame import (
    HEADER_BYTES,
    KEY_BYTES,
    OVERHEAD_BYTES,
    Frame,
    Scan,
    frame,
    header,
    scan,
)

log = logging.getLogger("appliance.store")

FILE_NAME = "turns"
LOCK_NAME = "lock"
PURPOSE = "another server"
REFUSED_NAME = "refused.jsonl"
DAMAGED_PREFIX = "damaged-"
TORN_PREFIX = "torn-"

RESERVE_BYTES = 16 << 20
"""Space that is taken from the disk ahead: turns that run when it fills up still find room."""

MARKS_BYTES = 1 << 20
"""Of the reserve, what only marks of finished entries may use: they make room."""


class JournalFile:
    """An open journal; `frames` are those found at opening, for its user to take once."""

    frames: tuple[Frame, ...]
    _file: int
    _key: bytes
    _end: int
    _last: int
    _reserved: int
    _is_suspect: bool
    _is_disk_full: bool

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Open or make it. Raises JournalHeld when another process has it, OSError."""
        self._folder = folder
        self._path = folder / FILE_NAME
        self._bytes_max = bytes_max
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _locked(folder)
        try:
            self._take(self._recovered())
        except BaseException:
            self._lock.release()
            raise

    @property
    def used_bytes(self) -> int:
        """How much of the file is frames."""
        return self._end

    @property
    def room_bytes(self) -> int:
        """How much entries may still use: what the limit leaves, or what is reserved of a full disk."""
        left = self._bytes_max - self._end
        if self._is_disk_full:
            left = min(left, self._reserved - MARKS_BYTES - self._end)
        return max(left, 0)

    def append(self, payloads: Sequence[bytes]) -> list[int]:
        """Write entries as frames in this order; returns their numbers once they are on the disk.

        All or none. Raises JournalFull at the limit or on a full disk, OSError.
        """
        size = sum(len(payload) + OVERHEAD_BYTES for payload in payloads)
        if self._end + size > self._bytes_max:
            raise JournalFull(f"the journal is full: database.journal_bytes is {self._bytes_max}")
        return self._write(payloads, size + MARKS_BYTES)

    def mark(self, payload: bytes) -> None:
        """Write a mark, which is no entry and may use the last of the space."""
        self._write([payload], len(payload) + OVERHEAD_BYTES)

    def top_up(self) -> None:
        """Take space ahead again after the disk was full."""
        self._reserve(0)

    def empty(self) -> None:
        """Let go of all frames; needs no space. Numbers go on. Raises OSError."""
        os.ftruncate(self._file, HEADER_BYTES)
        self._end = self._reserved = HEADER_BYTES
        os.fsync(self._file)
        self._reserve(0)

    def rewrite(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Replace the file by one with these numbered payloads alone; all or nothing. Raises OSError.

        The numbers go on from what they were.
        """
        content, key = _content(frames)
        old, self._file = self._file, put_file(self._path, content)
        self._key, self._end, self._reserved = key, len(content), len(content)
        # Until its name is on the disk, what is appended to it could go with it.
        self._is_suspect = True
        os.close(old)
        sync_folder(self._folder)
        self._is_suspect = False
        self._reserve(0)

    def keep_refused(self, lines: bytes) -> None:
        """Add lines to the file of entries that the database refused. On the disk when it returns."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder / REFUSED_NAME, flags, 0o600)
        try:
            write_all(descriptor, lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_folder(self._folder)

    def close(self) -> None:
        """Give up file and lock."""
        os.close(self._file)
        self._lock.release()

    def _recovered(self) -> Scan:
        """What the file holds; what is no frame is kept aside and reported."""
        if not self._path.exists():
            replace_file(self._path, header(secrets.token_bytes(KEY_BYTES)))
        data = self._path.read_bytes()
        try:
            found = scan(data)
        except JournalDamaged:
            self._set_aside(data, 0)
            replace_file(self._path, header(secrets.token_bytes(KEY_BYTES)))
            return scan(self._path.read_bytes())
        if found.torn_bytes:
            self._set_torn_aside(data[found.end : found.end + found.torn_bytes], found.end)
        for start, end in found.damaged:
            self._set_aside(data[start:end], start)
        if all(start == found.end for start, _ in found.damaged):
            return found
        content, _ = _content([(one.number, one.payload) for one in found.frames])
        replace_file(self._path, content)
        return scan(content)

    def _set_aside(self, data: bytes, start: int) -> None:
        name = f"{DAMAGED_PREFIX}{start}-{secrets.token_hex(4)}"
        replace_file(self._folder / name, data)
        log.error("journal_damaged", extra={"bytes": len(data), "offset": start, "kept_as": name})

    def _set_torn_aside(self, data: bytes, start: int) -> None:
        """Keep what was most likely never acknowledged: a damaged length looks the same, and whoever
        misses a turn finds its bytes. On a full disk they are let go: the server is to start."""
        name = f"{TORN_PREFIX}{start}-{secrets.token_hex(4)}"
        extra: dict[str, object] = {"bytes": len(data), "offset": start, "kept_as": name}
        try:
            replace_file(self._folder / name, data)
        except OSError as error:
            extra |= {"kept_as": None, "error": type(error).__name__}
        log.warning("journal_tail_cut", extra=extra)

    def _take(self, found: Scan) -> None:
        """Go on with the file as it was just scanned: what follows its frames is cut off."""
        self.frames = found.frames
        self._key, self._end = found.key, found.end
        self._last = found.frames[-1].number if found.frames else 0
        self._file = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._is_suspect = False
        self._is_disk_full = False
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        self._reserved = self._end
        self._reserve(0)

    def _write(self, payloads: Sequence[bytes], needed: int) -> list[int]:
        if self._is_suspect:
            self._renew()
        self._reserve(needed)
        if self._reserved - self._end < needed:
            raise JournalFull("the journal cannot grow: the disk is full")
        numbers = list(range(self._last + 1, self._last + 1 + len(payloads)))
        data = b"".join(
            frame(self._key, number, payload)
            for number, payload in zip(numbers, payloads, strict=True)
        )
        try:
            _write_all_at(self._file, data, self._end)
        except OSError:
            self._cut()
            raise
        try:
            os.fdatasync(self._file)
        except OSError:
            # Pages that could not be written may count as clean from now on: nothing here is certain.
            self._cut()
            self._is_suspect = True
            raise
        self._end += len(data)
        self._last = numbers[-1]
        return numbers

    def _cut(self) -> None:
        """Remove what was written behind the frames: it must not come to light later, behind others."""
        try:
            os.ftruncate(self._file, self._end)
            self._reserved = self._end
        except OSError:
            self._is_suspect = True

    def _renew(self) -> None:
        """After a failed write: a new file with what was acknowledged, since this one is not to be
        trusted."""
        kept = scan(os.pread(self._file, self._end, 0))
        assert kept.end == self._end
        self.rewrite([(one.number, one.payload) for one in kept.frames])

    def _reserve(self, needed: int) -> None:
        """Have `needed` bytes behind the frames, and what is kept ahead, as far as the disk allows."""
        if self._reserved >= self._end + needed + RESERVE_BYTES // 2:
            return
        was_full, self._is_disk_full = self._is_disk_full, False
        for ahead in (RESERVE_BYTES, 0):
            target = self._end + needed + ahead
            if target <= self._reserved:
                return
            try:
                os.posix_fallocate(self._file, self._reserved, target - self._reserved)
            except OSError:
                self._is_disk_full = True
            else:
                self._reserved = target
                return
            if not was_full:
                was_full = True
                log.error("journal_disk_full", extra={"reserved_bytes": self._reserved - self._end})


def read_journal(folder: Path) -> Scan | None:
    """What the journal of a folder holds, without taking it from who has it; None when there is none.

    Raises JournalDamaged, OSError.
    """
    try:
        return scan((folder / FILE_NAME).read_bytes())
    except FileNotFoundError:
        return None


def holder_of(folder: Path) -> Holder | None:
    """Who holds the journal of a folder, None when nobody does. Raises OSError."""
    return FileLock(folder / LOCK_NAME).holder()


def _locked(folder: Path) -> FileLock:
    lock = FileLock(folder / LOCK_NAME, purpose=PURPOSE)
    try:
        lock.acquire()
    except LockTaken as error:
        raise JournalHeld(f"{folder}: the journal is held by {error}") from error
    return lock


def _content(frames: Sequence[tuple[int, bytes]]) -> tuple[bytes, bytes]:
    """(a whole file, its key) of numbered payloads."""
    key = secrets.token_bytes(KEY_BYTES)
    return header(key) + b"".join(frame(key, *one) for one in frames), key


def _write_all_at(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
