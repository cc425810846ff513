"""The journal: entries that the database could not take, on the local disk until it can.

Owns the file, the overlay of what is in it, and the writing in groups: entries that come together
share one fsync. Never: decides what goes into it, or writes to the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.errors import JournalDamaged, JournalFull, StorageUnavailable
from appliance.store.entries import DoneEntry, Entry, decode, encode, storable_entry
from appliance.store.journal_file import JournalFile
from appliance.store.journal_frame import OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, Frame
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An entry that the database refused for good, and why."""

    number: int
    entry: Entry
    reason: str


@dataclass(slots=True, eq=False)
class _Waiting:
    entry: Entry
    payload: bytes
    answer: asyncio.Future[StoredTurn | Conversation]


class Journal:
    """The open journal of one process. Its methods are for one event loop; the disk has a thread."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Open it and hold what it has. Raises JournalHeld, JournalDamaged, OSError."""
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

    async def keep_refused(self, refusals: Sequence[Refusal]) -> None:
        """Write down aside, for a person to read, what the database will never take. Raises OSError."""
        lines = b"".join(
            msgspec.json.encode({"number": one.number, "reason": one.reason, "entry": one.entry})
            + b"\n"
            for one in refusals
        )
        await self._on_disk(lambda: self._file.keep_refused(lines))
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


def pending_of(frames: Sequence[Frame]) -> list[tuple[int, Entry]]:
    """The entries of a journal that no mark says are done, with their numbers, in order.

    Raises JournalDamaged for a whole frame that is no entry.
    """
    entries: dict[int, Entry] = {}
    for one in frames:
        try:
            meaning = decode(one.payload)
        except msgspec.DecodeError as error:
            raise JournalDamaged(
                f"frame {one.number} of the journal was written by another version of this program: "
                "use that one until the journal is empty"
            ) from error
        if isinstance(meaning, DoneEntry):
            for number in meaning.numbers:
                entries.pop(number, None)
        else:
            entries[one.number] = meaning
    return list(entries.items())


def oldest_s(at: datetime | None, now: datetime) -> float:
    """How long the oldest entry waits, in seconds; 0 of none."""
    return 0.0 if at is None else max((now - at).total_seconds(), 0.0)
