"""The journal: entries that the database could not take, on the local disk until it can.

Owns the file, the overlay of what is in it, and the writing in groups: entries that come together
share one fsync. Never: decides what goes into it, or writes to the database.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from appliance.errors import JournalDamaged, JournalForeign, JournalFull, StorageUnavailable
from appliance.store.entries import DoneEntry, Entry, encode, pending_of, storable_entry
from appliance.store.journal_aside import Refusal, keep_refused
from appliance.store.journal_file import FILE_NAME, JournalFile
from appliance.store.journal_frame import HEADER_BYTES, OVERHEAD_BYTES, PAYLOAD_BYTES_MAX
from appliance.store.overlay import Overlay
from appliance.store.records import Conversation, StoredTurn

log = logging.getLogger("appliance.store")

T = TypeVar("T")

TURN_BYTES = 64 << 10
"""What a turn that now begins is counted with: a long reply with its token ids, and then some."""

SLACK_BYTES = 8 << 20
"""A file with this much of finished entries, and more of them than of others, is written anew."""

SLACK_SHARE = 8
"""One part in so many of the limit is as much: a small journal is not full of what is finished."""


@dataclass(slots=True, eq=False)
class _Waiting:
    entry: Entry
    payload: bytes
    answer: asyncio.Future[StoredTurn | Conversation]


class Journal:
    """The open journal of one process. Its methods are for one event loop; the disk has a thread."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Open it and hold what it has. Raises JournalHeld, JournalDamaged, OSError."""
        self.folder = folder
        self._file = JournalFile(folder, bytes_max=bytes_max)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._waiting: list[_Waiting] = []
        self._answers: dict[Hashable, asyncio.Future[StoredTurn | Conversation]] = {}
        self._running: asyncio.Task[None] | None = None
        self.overlay = Overlay()
        self.bytes_max = bytes_max
        self._one_at_a_time = asyncio.Lock()
        self._sizes: dict[int, int] = {}
        self.changed = asyncio.Event()
        try:
            found = pending_of(self._file.frames)
        except JournalDamaged:
            self._file.close()
            raise
        for number, entry in found:
            self.overlay.add(number, entry)
            self._sizes[number] = len(encode(entry)) + OVERHEAD_BYTES
        self._pending_bytes = sum(self._sizes.values())
        self._file.frames = ()
        if len(self.overlay):
            log.warning("journal_found", extra={"entries": len(self.overlay)})
            self.changed.set()

    @property
    def key(self) -> bytes:
        """What the frames of its file are made with."""
        return self._file.key

    @property
    def used_bytes(self) -> int:
        """How much of its file is used."""
        return self._file.used_bytes

    def has_room(self, turns: int) -> bool:
        """Whether so many more turns of a usual size fit, by the limit and by what is known of the
        disk."""
        return self._file.room_bytes >= turns * TURN_BYTES

    async def append(self, entry: Entry) -> StoredTurn | Conversation:
        """What the entry will have stored, once it is on the disk.

        Raises StorageUnavailable (JournalFull at the limit), and then nothing of it is kept.
        """
        if (first := self._answers.get(entry.identity)) is not None:
            # The same send again, before it is on the disk: it is written, and stored, once.
            stored = await asyncio.shield(first)
            return replace(stored, replayed=True) if isinstance(stored, StoredTurn) else stored
        try:
            payload = encode(entry)
        except UnicodeEncodeError:
            entry = storable_entry(entry)
            payload = encode(entry)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise JournalFull(f"an entry has at most {PAYLOAD_BYTES_MAX} bytes in the journal")
        answer = asyncio.get_running_loop().create_future()
        self._answers[entry.identity] = answer
        answer.add_done_callback(lambda _: self._answers.pop(entry.identity))
        self._waiting.append(_Waiting(entry, payload, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._write_waiting(), name="journal")
        # The entry is written even if its caller leaves: it is then there, and told to nobody.
        return await asyncio.shield(answer)

    async def settle(self, numbers: Sequence[int]) -> None:
        """Mark entries as being in the database, and let go of them. Raises OSError, JournalFull."""
        async with self._one_at_a_time:
            if len(numbers) == len(self.overlay):
                await self._on_disk(self._file.empty)
            elif numbers:
                mark = encode(DoneEntry(numbers=tuple(numbers)))
                await self._on_disk(lambda: self._file.mark(mark))
            self.overlay.remove(numbers)
            for number in numbers:
                self._pending_bytes -= self._sizes.pop(number)
            slack = min(SLACK_BYTES, self.bytes_max // SLACK_SHARE)
            if self._file.used_bytes - self._pending_bytes > max(slack, self._pending_bytes):
                kept = list(self.overlay.pending())
                await self._on_disk(
                    lambda: self._file.rewrite([(number, encode(entry)) for number, entry in kept])
                )

    async def bind(self, database: str) -> None:
        """Hold it to one database: what waits goes to no other. Raises JournalForeign."""
        if self._file.database == database:
            return
        if len(self.overlay) and self._file.database is not None:
            raise JournalForeign(
                f"{self.folder}: {len(self.overlay)} entries wait for the database whose schema was made "
                f"at {self._file.database}, and this is one of {database}: name the right one, or move "
                f"{FILE_NAME} away and write it there later, with `appliance db journal replay --from`"
            )
        async with self._one_at_a_time:
            await self._on_disk(lambda: self._file.bind(database))

    async def put_back(self, entries: Sequence[Entry]) -> int:
        """Let entries that were kept aside wait again, among the others by their times; how many did not
        yet. All or none. Raises JournalFull, OSError."""
        async with self._one_at_a_time:
            before = list(self.overlay.pending())
            known = {one.identity for _, one in before}
            new: dict[Hashable, Entry] = {}
            for one in entries:
                if one.identity not in known:
                    new.setdefault(one.identity, one)
            merged = heapq.merge((one for _, one in before), sorted(new.values(), key=_at), key=_at)
            after = list(enumerate(merged, self._file.next_number))
            payloads = [(number, encode(one)) for number, one in after]
            sizes = {number: len(payload) + OVERHEAD_BYTES for number, payload in payloads}
            if HEADER_BYTES + sum(sizes.values()) > self.bytes_max:
                raise JournalFull(
                    f"{len(new)} entries more do not fit: database.journal_bytes is {self.bytes_max}"
                )
            await self._on_disk(lambda: self._file.rewrite(payloads))
            self.overlay.remove([number for number, _ in before])
            for number, one in after:
                self.overlay.add(number, one)
            self._sizes, self._pending_bytes = sizes, sum(sizes.values())
            self.changed.set()
            return len(new)

    async def keep_refused(self, refusals: Sequence[Refusal]) -> None:
        """Write down aside, for a person to read, what the database will never take. Raises OSError."""
        await self._on_disk(lambda: keep_refused(self.folder, refusals))
        log.error(
            "journal_entries_refused",
            extra={"entries": len(refusals), "reason": refusals[0].reason},
        )

    async def top_up(self) -> None:
        """Take space ahead again after the disk was full."""
        await self._on_disk(self._file.top_up)

    async def close(self) -> None:
        """Wait for what is being written, and give file and lock back."""
        while self._running is not None:
            await asyncio.wait({self._running})
        self._thread.shutdown()
        self._file.close()

    async def _write_waiting(self) -> None:
        """Write what waits, all of it at once, until nothing does."""
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._write_group(group)
        finally:
            self._running = None

    async def _write_group(self, group: list[_Waiting]) -> None:
        try:
            async with self._one_at_a_time:
                payloads = [one.payload for one in group]
                numbers = await self._on_disk(lambda: self._file.append(payloads))
                for number, one in zip(numbers, group, strict=True):
                    self._hold(number, one)
            self.changed.set()
        except JournalFull as error:
            if len(group) == 1:
                group[0].answer.set_exception(error)
                return
            for one in group:  # a shorter one may fit
                await self._write_group([one])
        except OSError as error:
            log.error("journal_not_written", extra={"error": type(error).__name__})
            told = f"neither the database nor the journal takes this: {error.strerror}"
            for one in group:
                one.answer.set_exception(StorageUnavailable(told))
        except (
            Exception
        ) as error:  # a bug of ours: who waits is to know, and what comes next is written
            log.error("journal_not_written", exc_info=error)
            for one in group:
                if not one.answer.done():
                    one.answer.set_exception(error)

    def _hold(self, number: int, one: _Waiting) -> None:
        self._sizes[number] = len(one.payload) + OVERHEAD_BYTES
        self._pending_bytes += self._sizes[number]
        one.answer.set_result(self.overlay.add(number, one.entry))

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def oldest_s(at: datetime | None, now: datetime) -> float:
    """How long the oldest entry waits, in seconds; 0 of none."""
    return 0.0 if at is None else max((now - at).total_seconds(), 0.0)


def _at(entry: Entry) -> datetime:
    assert entry.at is not None, "an entry in the journal has its time"
    return entry.at
