"""The file of the disk tier: slots that each say what is in them. Never: threads, or which page to keep.

Layout, numbers little-endian: a header of 4,096 bytes (magic, SHA-256 of the rest, epoch of 16 bytes,
length u32 and JSON of the `SlotShape`), a record for each slot, then the slots' contents side by side
from the next multiple of 4,096 on. A record is the first 8 bytes of the SHA-256 of its rest, then epoch,
page key (32 bytes), arrival u64, and the tag: SHA-256 of epoch, key, arrival and content.

The records are the table of slots: there is no other, so nothing can be out of step after `kill -9` or a
loss of power, and nothing is ever synced. A record of another epoch, or whose check is wrong, is an
empty slot. A content is used only if record and tag fit it: a write that was cut off, or whose record
and content did not both arrive, is a page that is computed again. A new epoch empties all slots at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import struct
from pathlib import Path

import msgspec

from appliance.errors import ConfigError

log = logging.getLogger("appliance.engine")

MAGIC = b"appl-kv1"
HEADER_BYTES = 4096
EPOCH_BYTES = 16
CHECK_BYTES = 8
TAG_BYTES = 32
_SUM = struct.Struct("<8s32s")
_RECORD = struct.Struct("<8s16s32sQ32s")
RECORD_BYTES = _RECORD.size
BLOCK_BYTES = 512
"""Of `st_blocks`."""
DISK_RESERVE_BYTES = 256 * 1024 * 1024
"""What must stay free on the disk when the file is made: the database writes there too."""

_OPERATOR_ERRORS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR}
    | {errno.EISDIR, errno.ELOOP, errno.EEXIST}
)


class SlotShape(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes the bytes of a page what they are, its tokens and namespaces aside, and how many
    of them the file has room for."""

    model_fingerprint: str
    kv_dtype: str
    page_size: int
    content_bytes: int
    slots: int

    @property
    def contents_start(self) -> int:
        """Where the first slot's content begins."""
        table_end = HEADER_BYTES + self.slots * RECORD_BYTES
        return -(-table_end // HEADER_BYTES) * HEADER_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.contents_start + self.slots * self.content_bytes


def slots_in(budget_bytes: int, content_bytes: int) -> int:
    """How many slots a file of at most `budget_bytes` has."""
    return max(0, (budget_bytes - 2 * HEADER_BYTES) // (content_bytes + RECORD_BYTES))


class SlotFile:
    """An open slot file, locked against other processes. One thread at a time."""

    def __init__(self, path: Path, shape: SlotShape) -> None:
        """Open or make the file; its folder is made too, for its owner alone.

        A file of another shape is emptied. Raises ConfigError for what the operator can change
        (permissions, room, another engine with the same folder), OSError for a disk that fails.
        """
        assert shape.slots > 0
        self.path = path
        self.shape = shape
        self._epoch = b""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise _told(path, error) from error
        try:
            self._prepare()
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError):
                raise _told(path, error) from error
            raise

    def pages(self) -> list[tuple[bytes, int, int]]:
        """(page key, slot, arrival) of what the records say, by arrival; of two with one key the newer.

        Contents are not looked at: `read` does.
        """
        table = os.pread(self._fd, self.shape.slots * RECORD_BYTES, HEADER_BYTES)
        newest: dict[bytes, tuple[bytes, int, int]] = {}
        for slot in range(len(table) // RECORD_BYTES):
            record = table[slot * RECORD_BYTES : (slot + 1) * RECORD_BYTES]
            check, epoch, key, arrival, _ = _RECORD.unpack(record)
            if epoch != self._epoch or check != _check(record[CHECK_BYTES:]):
                continue
            if key not in newest or newest[key][2] < arrival:
                newest[key] = (key, slot, arrival)
        return sorted(newest.values(), key=lambda page: page[2])

    def write(self, slot: int, key: bytes, arrival: int, content: memoryview) -> None:
        """Put a page into a slot. Raises OSError; the slot then has no page, or the old one."""
        head = struct.pack("<16s32sQ", self._epoch, key, arrival)
        record = head + _tag(head, content)
        _write_all(self._fd, content, self._content_at(slot))
        _write_all(self._fd, _check(record) + record, self._record_at(slot))

    def read(self, slot: int, key: bytes, content: memoryview) -> bool:
        """Fill `content` from a slot; False, and anything in it, when it does not have this page, whole
        and unchanged. Raises OSError."""
        record = os.pread(self._fd, RECORD_BYTES, self._record_at(slot))
        if len(record) < RECORD_BYTES:
            return False
        check, epoch, found, _, tag = _RECORD.unpack(record)
        if check != _check(record[CHECK_BYTES:]) or epoch != self._epoch or found != key:
            return False
        return _read_all(self._fd, content, self._content_at(slot)) and tag == _tag(
            record[CHECK_BYTES:-TAG_BYTES], content
        )

    def reset(self) -> None:
        """Empty all slots. Raises OSError."""
        epoch = os.urandom(EPOCH_BYTES)
        shape = msgspec.json.encode(self.shape)
        body = epoch + struct.pack("<I", len(shape)) + shape
        body = body.ljust(HEADER_BYTES - _SUM.size, b"\0")
        _write_all(self._fd, _SUM.pack(MAGIC, hashlib.sha256(body).digest()) + body, 0)
        self._epoch = epoch

    def close(self) -> None:
        """Close the file; others may open it then."""
        os.close(self._fd)

    def _content_at(self, slot: int) -> int:
        assert 0 <= slot < self.shape.slots
        return self.shape.contents_start + slot * self.shape.content_bytes

    def _record_at(self, slot: int) -> int:
        assert 0 <= slot < self.shape.slots
        return HEADER_BYTES + slot * RECORD_BYTES

    def _prepare(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self.path}: is not a regular file; the disk tier needs its place")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{self.path}: another engine uses this data folder") from error
        os.fchmod(self._fd, 0o600)
        size = self.shape.file_bytes
        missing = size - status.st_blocks * BLOCK_BYTES
        disk = os.fstatvfs(self._fd)
        free = disk.f_bavail * disk.f_frsize
        if missing > 0 and missing + DISK_RESERVE_BYTES > free:
            raise ConfigError(
                f"engine.disk_cache_bytes: {self.path} takes {size} bytes, {missing} of them still to "
                f"be had, and {DISK_RESERVE_BYTES} must stay free; the disk has {free} free"
            )
        why = self._difference()
        os.ftruncate(self._fd, size)
        os.posix_fallocate(self._fd, 0, size)
        if why is not None:
            self.reset()
        if status.st_size > 0 and (why is not None or status.st_size != size):
            reason = why or f"{status.st_size} of {size} bytes are left"
            log.warning("disk_tier_damaged_or_changed", extra={"reason": reason})

    def _difference(self) -> str | None:
        """Why what the file holds is not used; takes its epoch when it is."""
        header = os.pread(self._fd, HEADER_BYTES, 0)
        if len(header) < HEADER_BYTES:
            return "the header is cut off"
        magic, digest = _SUM.unpack_from(header)
        body = header[_SUM.size :]
        if magic != MAGIC or hashlib.sha256(body).digest() != digest:
            return "the header is damaged or of another version"
        (length,) = struct.unpack_from("<I", body, EPOCH_BYTES)
        found = msgspec.json.decode(body[EPOCH_BYTES + 4 :][:length], type=SlotShape)
        pairs = zip(SlotShape.__struct_fields__, msgspec.structs.astuple(found), strict=True)
        changed = [name for name, value in pairs if value != getattr(self.shape, name)]
        if changed:
            return "another " + ", another ".join(changed)
        self._epoch = body[:EPOCH_BYTES]
        return None


def _check(rest: bytes) -> bytes:
    return hashlib.sha256(rest).digest()[:CHECK_BYTES]


def _tag(head: bytes, content: memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(content)
    return digest.digest()


def _write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written


def _read_all(fd: int, into: memoryview, at: int) -> bool:
    rest = into
    while rest:
        count = os.preadv(fd, [rest], at)
        if count == 0:
            return False
        rest, at = rest[count:], at + count
    return True


def _told(path: Path, error: OSError) -> ConfigError | OSError:
    if error.errno in _OPERATOR_ERRORS:
        return ConfigError(f"engine.disk_cache_bytes: {path}: {error.strerror}")
    return error
