"""The disk tier's thread and its buffers. Never: decides what is written, or touches the K/V tensor.

One thread does all file I/O in the order it was asked for, so a read sees the writes before it and a
slot's content is out before it is written over. Pages travel in a bounded number of buffers, which is
the queue's bound too. When the disk fails, or does not answer for `ANSWER_S`, the tier is off: what is
asked of it then does nothing, and what is read from it is not there. The engine goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, LifoQueue, SimpleQueue

import torch

from appliance.engine.slot_file import SlotFile

log = logging.getLogger("appliance.engine")

BUFFER_BYTES = 64 * 1024 * 1024
"""Memory for pages on their way to or from the disk."""
BUFFERS_MIN = 4
BUFFERS_MAX = 256
ANSWER_S = 5.0
"""A disk that takes longer than this for what is queued is as good as none."""


class Read:
    """A page that is being read into `buffer`."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self._is_good = False
        self._done = threading.Event()

    def set(self, is_good: bool) -> None:
        """Said by the thread: whether the buffer has the page."""
        self._is_good = is_good
        self._done.set()

    def wait(self, timeout_s: float) -> bool | None:
        """Whether the buffer has the page; None when that is not known in time."""
        return self._is_good if self._done.wait(timeout_s) else None


class DiskTier:
    """Slots of a file, behind a thread. All methods are for one other thread."""

    def __init__(self, file: SlotFile, *, pinned: bool = False) -> None:
        """`pinned`: the buffers are page-locked, for copies to and from a GPU. Raises OSError."""
        pages = file.pages()
        self.found = [(key, slot) for key, slot, _ in pages]
        self.slots = file.shape.slots
        self.file_bytes = file.shape.file_bytes
        self.failure: str | None = None
        self._file = file
        self._arrivals = 1 + max((arrival for _, _, arrival in pages), default=0)
        self._pinned = pinned
        content_bytes = file.shape.content_bytes
        self._unmade = min(BUFFERS_MAX, max(BUFFERS_MIN, BUFFER_BYTES // content_bytes))
        self._buffers: LifoQueue[torch.Tensor] = LifoQueue()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk-tier", daemon=True)
        self._thread.start()

    def take_buffer(self, timeout_s: float) -> torch.Tensor | None:
        """An idle buffer, uint8 [content_bytes]; None when there is none in time."""
        if self._buffers.empty() and self._unmade > 0:
            self._unmade -= 1
            size = self._file.shape.content_bytes
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
        try:
            return self._buffers.get(timeout=max(timeout_s, 0.0) or None, block=timeout_s > 0)
        except Empty:
            return None

    def give_buffer(self, buffer: torch.Tensor) -> None:
        """Take a buffer back."""
        self._buffers.put(buffer)

    def next_arrivals(self, count: int) -> range:
        """Numbers for pages to be written, in the order in which they are to be given up."""
        first = self._arrivals
        self._arrivals += count
        return range(first, first + count)

    def write(self, slot: int, key: bytes, buffer: torch.Tensor, arrival: int) -> None:
        """Write a page; the buffer is the tier's from now on."""

        def job() -> None:
            try:
                if self.failure is None:
                    self._file.write(slot, key, arrival, _bytes_of(buffer))
            finally:
                self._buffers.put(buffer)

        self._jobs.put(job)

    def read(self, slot: int, key: bytes, buffer: torch.Tensor) -> Read:
        """Begin to read a page; the buffer is the reader's again once `wait` has answered."""
        reading = Read(buffer)

        def job() -> None:
            is_good = False
            try:
                if self.failure is None:
                    is_good = self._file.read(slot, key, _bytes_of(buffer))
            finally:
                reading.set(is_good)

        self._jobs.put(job)
        return reading

    def forget(self) -> None:
        """Empty all slots, after what was asked for before."""
        self._jobs.put(lambda: None if self.failure else self._file.reset())

    def finish(self, timeout_s: float) -> bool:
        """Wait for all that was asked for; False when it is not done in time."""
        done = threading.Event()
        self._jobs.put(done.set)
        return done.wait(max(timeout_s, 0.0))

    def turn_off(self, failure: str) -> None:
        """Use the disk no more."""
        if self.failure is None:
            self.failure = failure
            log.error("disk_tier_off", extra={"failure": failure, "file": self._file.path})

    def close(self) -> None:
        """End the thread and close the file, once what was asked for is done; a disk that does not
        answer is left behind."""
        self._jobs.put(None)
        self._thread.join(ANSWER_S)
        if not self._thread.is_alive():
            self._file.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except OSError as error:
                self.turn_off(str(error))


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    return buffer.numpy().data
