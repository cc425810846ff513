"""The journal's folder on disk: one file of frames, held by one process.

Owns the lock and the order of frames. What `append` has returned for is on the
disk. Plain calls that block; whoever uses it takes care that one runs at a time. Never: reads what
a payload means.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from appliance.durable import put_file, replace_file, sync_folder, write_all_at
from appliance.errors import JournalDamaged, JournalFull, JournalHeld
from appliance.file_lock import FileLock, Holder, LockTaken
from appliance.store.journal_aside import set_aside, set_torn_aside
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
from appliance.store.journal_label import LABEL_NAME, Label, read_label, write_label

log = logging.getLogger("appliance.store")

FILE_NAME = "turns"
LOCK_NAME = "lock"
PURPOSE = "another server"

RESERVE_BYTES = 16 << 20
"""Space that is taken from the disk ahead: turns that run when it fills up still find room."""

MARKS_BYTES = 1 << 20
"""Of the reserve, what only marks of finished entries may use: they make room."""


class JournalFile:
    """An open journal; `frames` are those found at opening, for its user to take once."""

    frames: tuple[Frame, ...]
    _file: int
    _label: Label
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

    @property
    def database(self) -> str | None:
        """Where its entries belong; None: not known yet."""
        return self._label.database

    @property
    def next_number(self) -> int:
        """What the next frame will have."""
        return self._last + 1

    @property
    def key(self) -> bytes:
        """What its frames are made with."""
        return self._label.key

    def bind(self, database: str) -> None:
        """Write down where its entries belong, as far as the disk allows."""
        self._put_label(Label(key=self._label.key, database=database))

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

        The numbers go on from what they were, or from the last of these.
        """
        content = _content(self._label.key, frames)
        old, self._file = self._file, put_file(self._path, content)
        self._end = self._reserved = len(content)
        self._last = max([self._last, *(number for number, _ in frames)])
        # Until its name is on the disk, what is appended to it could go with it.
        self._is_suspect = True
        os.close(old)
        sync_folder(self._folder)
        self._is_suspect = False
        self._reserve(0)

    def close(self) -> None:
        """Give up file and lock."""
        os.close(self._file)
        self._lock.release()

    def _recovered(self) -> Scan:
        """What the file holds; what is no frame is kept aside and reported."""
        label = read_label(self._folder)
        spare_key = None if label is None else label.key
        new = header(spare_key or secrets.token_bytes(KEY_BYTES))
        if not self._path.exists():
            replace_file(self._path, new)
        data = self._path.read_bytes()
        try:
            found = scan(data, spare_key=spare_key)
        except JournalDamaged:
            set_aside(self._folder, data, 0)
            replace_file(self._path, new)
            found = scan(new)
        else:
            found = self._mended(data, found)
        if label is not None and label.key == found.key:
            self._label = label
        else:
            database = None if label is None else label.database
            self._put_label(Label(key=found.key, database=database))
        return found

    def _mended(self, data: bytes, found: Scan) -> Scan:
        """The file without what is no frame in it."""
        if found.torn_bytes:
            set_torn_aside(self._folder, data[found.end : found.end + found.torn_bytes], found.end)
        for start, end in found.damaged:
            set_aside(self._folder, data[start:end], start)
        if all(start == found.end for start, _ in found.damaged):
            return found
        content = _content(found.key, [(one.number, one.payload) for one in found.frames])
        replace_file(self._path, content)
        return scan(content)

    def _put_label(self, label: Label) -> None:
        """On a full disk there is none rather than one that is no longer true: the server is to start."""
        self._label = label
        try:
            write_label(self._folder, label)
        except OSError as error:
            log.warning("journal_label_not_written", extra={"error": type(error).__name__})
            with contextlib.suppress(OSError):
                (self._folder / LABEL_NAME).unlink()

    def _take(self, found: Scan) -> None:
        """Go on with the file as it was just scanned: what follows its frames is cut off."""
        self.frames = found.frames
        self._end = found.end
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
            frame(self._label.key, number, payload)
            for number, payload in zip(numbers, payloads, strict=True)
        )
        try:
            write_all_at(self._file, data, self._end)
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
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    label = read_label(folder)
    return scan(data, spare_key=None if label is None else label.key)


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


def _content(key: bytes, frames: Sequence[tuple[int, bytes]]) -> bytes:
    """A whole file of numbered payloads."""
    return header(key) + b"".join(frame(key, *one) for one in frames)
