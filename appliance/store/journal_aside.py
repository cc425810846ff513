"""What is kept aside beside the journal: refused entries, damaged stretches, torn ends; and the way back.

Owns the names and forms of those files. Never: takes an entry for good that is not whole, or removes a
byte that is none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance.durable import replace_file, sync_folder, write_all_at
from appliance.errors import JournalDamaged
from appliance.store.entries import Entry, pending_of
from appliance.store.journal_frame import Scan, scan, scan_part

log = logging.getLogger("appliance.store")

REFUSED_NAME = "refused.jsonl"
DAMAGED_PREFIX = "damaged-"
TORN_PREFIX = "torn-"

LOOK_BACK_BYTES = 1 << 16
"""How much of a file's end is looked at in one read for its last line."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that the database refused for good, and why: a line of the file."""

    number: int
    reason: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A file that was kept aside, read: its entries in their order, and the bytes that are none."""

    entries: tuple[Entry, ...]
    rest: bytes


def keep_refused(folder: Path, refusals: Sequence[Refusal]) -> None:
    """Add lines to the file of refused entries, all of them or none; on the disk when it returns.

    Raises OSError.
    """
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in refusals)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / REFUSED_NAME, flags, 0o600)
    try:
        end = _lines_end(descriptor)
        try:
            # What a crash has left of a line goes: its entry waits still, and comes again.
            os.ftruncate(descriptor, end)
            write_all_at(descriptor, lines, end)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)
    sync_folder(folder)


def set_aside(folder: Path, data: bytes, start: int) -> None:
    """Keep what is no frame. Raises OSError."""
    name = f"{DAMAGED_PREFIX}{start}-{secrets.token_hex(4)}"
    replace_file(folder / name, data)
    log.error("journal_damaged", extra={"bytes": len(data), "offset": start, "kept_as": name})


def set_torn_aside(folder: Path, data: bytes, start: int) -> None:
    """Keep what was most likely never acknowledged: a damaged length looks the same, and whoever misses
    a turn finds its bytes. On a full disk they are let go: the server is to start."""
    name = f"{TORN_PREFIX}{start}-{secrets.token_hex(4)}"
    extra: dict[str, object] = {"bytes": len(data), "offset": start, "kept_as": name}
    try:
        replace_file(folder / name, data)
    except OSError as error:
        extra |= {"kept_as": None, "error": type(error).__name__}
    log.warning("journal_tail_cut", extra=extra)


def read_aside(path: Path, *, key: bytes) -> Aside:
    """The entries of a refused, damaged or torn file, or of a journal that was moved away whole.

    `key` is that of the journal that it came from. Raises JournalDamaged where an entry is another
    version's, OSError.
    """
    data = path.read_bytes()
    return _lines(data) if data.startswith(b"{") else _frames(data, key)


def leave_rest(path: Path, rest: bytes) -> None:
    """Leave only that in a file whose entries are kept elsewhere; with nothing left it goes. Raises
    OSError."""
    if rest:
        replace_file(path, rest)
    else:
        path.unlink()
        sync_folder(path.parent)


def _lines(data: bytes) -> Aside:
    entries: list[Entry] = []
    rest: list[bytes] = []
    for line in data.splitlines(keepends=True):
        try:
            entry = msgspec.json.decode(line, type=Refusal).entry
        except msgspec.DecodeError:
            entry = None
        if entry is None or entry.at is None:
            rest.append(line)
        else:
            entries.append(entry)
    return Aside(entries=tuple(entries), rest=b"".join(rest))


def _frames(data: bytes, key: bytes) -> Aside:
    found = scan_part(data, key)
    with contextlib.suppress(JournalDamaged):
        found = max(scan(data, spare_key=key), found, key=_frame_count)
    stretches = [*found.damaged, (found.end, found.end + found.torn_bytes)]
    return Aside(
        entries=tuple(entry for _, entry in pending_of(found.frames)),
        rest=b"".join(data[start:end] for start, end in stretches),
    )


def _frame_count(found: Scan) -> int:
    return len(found.frames)


def _lines_end(descriptor: int) -> int:
    """Where the last whole line of a file ends."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(end - LOOK_BACK_BYTES, 0)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
