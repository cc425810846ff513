"""The one writer of finished turns and new conversations: many at once, in batches of a few milliseconds.

Owns the queue, and the order within a conversation. Each entry has its answer only after the commit of
its batch. Never: keeps an entry longer than its caller waits, or writes anything but entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass
from datetime import datetime

from appliance.database_failure import DatabaseFailure
from appliance.errors import StorageUnavailable
from appliance.store.entries import ConversationEntry, Entry, Key, TurnEntry
from appliance.store.pool import Pool
from appliance.store.records import Conversation, FinishedTurn, NewConversation, StoredTurn
from appliance.store.retry import (
    DELAY_MAX_S,
    DELAY_MIN_S,
    Verdict,
    log,
    reason,
    verdict,
)
from appliance.store.turn_batch import BatchLimits, Outcome, Tally, choose, is_settled, write_batch

LINGER_S = 0.004
"""How long the first entry of a batch waits for others to share its commit with: less than a commit on a
disk takes, and at 2,000 turns a second with the time of a batch before it enough for 20 turns."""

LANES = 2
"""Batches on their way at once: a turn takes PostgreSQL half a millisecond of one core."""

SECOND_LANE_MIN = 24
"""So many entries must wait before another batch starts beside one: a smaller one would cost a
transaction ID and a write of the log that it can share with those to come."""

SLOW_S = 0.1
"""A batch takes some 15 ms: who has waited so long waits behind one that somebody's lock holds up, and
goes beside it, however few there are."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    """An entry, its answer, and when (loop time) it came and is given up."""

    entry: Entry
    answer: asyncio.Future[StoredTurn | Conversation]
    since: float
    deadline: float


class TurnWriter:
    """Writes entries of all conversations; to be used on one event loop."""

    def __init__(
        self,
        pool: Pool,
        *,
        patience_s: float,
        limits: BatchLimits | None = None,
        lanes: int = LANES,
        linger_s: float = LINGER_S,
        jitter: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._patience_s = patience_s
        self._limits = limits or BatchLimits()
        self._lanes = lanes
        self._linger_s = linger_s
        self._jitter = jitter or random.Random()
        self._queue: deque[_Waiting] = deque()
        self._busy: set[Key] = set()
        self._flights: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._delay_s = DELAY_MIN_S
        self.tally = Tally()

    async def append(self, turn: FinishedTurn, at: datetime | None = None) -> StoredTurn:
        """Store a turn that ended `at` (None: when it is written); see `Ledger.append_turn`, which this
        is."""
        stored = await self._write(TurnEntry(turn=turn, at=at))
        assert isinstance(stored, StoredTurn)
        return stored

    async def open(self, opened: NewConversation) -> Conversation:
        """Store a new conversation with its greetings; see `Ledger.open`, which this is."""
        stored = await self._write(ConversationEntry(opened=opened))
        assert isinstance(stored, Conversation)
        return stored

    async def close(self) -> None:
        """Wait until nothing waits or is on its way any more."""
        while self._running is not None or self._flights:
            running = () if self._running is None else (self._running,)
            await asyncio.wait((*running, *self._flights))

    async def _write(self, entry: Entry) -> StoredTurn | Conversation:
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting = _Waiting(
            entry=entry,
            answer=loop.create_future(),
            since=now,
            deadline=now + self._patience_s,
        )
        self._queue.append(waiting)
        if len(self._queue) >= min(SECOND_LANE_MIN, self._limits.entries):
            self._changed.set()
        self._start()
        return await waiting.answer

    def _start(self) -> None:
        if self._queue and self._running is None:
            self._running = asyncio.create_task(self._run(), name="turn-writer")

    async def _run(self) -> None:
        """Until nothing waits."""
        try:
            while self._queue:
                await self._linger()
                has_lane = self._has_lane()
                batch = self._take() if has_lane else []
                if batch:
                    flight = asyncio.create_task(self._fly(batch), name="turn-batch")
                    self._flights.add(flight)
                    flight.add_done_callback(self._landed)
                elif self._flights:
                    # With a lane and nothing to take, only one that lands changes anything.
                    await self._change(None if has_lane else self._lane_in_s())
        finally:
            self._running = None

    def _has_lane(self) -> bool:
        """Whether a batch may start now."""
        if not self._flights:
            return True
        wait_s = self._lane_in_s()
        return wait_s is not None and (len(self._queue) >= SECOND_LANE_MIN or wait_s <= 0)

    def _lane_in_s(self) -> float | None:
        """Seconds until those that wait get another lane, though they are few; None: when one lands."""
        if len(self._flights) >= self._lanes:
            return None
        return self._queue[0].since + SLOW_S - asyncio.get_running_loop().time()

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._changed.set()
        self._start()  # for what it put back

    async def _linger(self) -> None:
        """Let a batch gather: until there are many, or the first entry has waited long enough."""
        left_s = self._queue[0].since + self._linger_s - asyncio.get_running_loop().time()
        if len(self._queue) >= min(SECOND_LANE_MIN, self._limits.entries) or left_s <= 0:
            return
        await self._change(left_s)

    async def _change(self, within_s: float | None) -> None:
        """Wait until something has come or gone, or for so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    def _take(self) -> list[_Waiting]:
        """Take the next batch out of the queue; who no longer waits is left out."""
        self._queue = deque(one for one in self._queue if not one.answer.done())
        places = choose((one.entry for one in self._queue), busy=self._busy, limits=self._limits)
        batch = [self._queue[place] for place in places]
        taken = set(places)
        self._queue = deque(one for place, one in enumerate(self._queue) if place not in taken)
        self._busy.update(one.entry.key for one in batch)
        return batch

    async def _fly(self, batch: list[_Waiting]) -> None:
        """Write a batch and answer; what passes goes back to the front of the queue."""
        failed: list[tuple[_Waiting, Exception]] = []
        try:
            # Who came first gives up then, and takes the entry elsewhere: it must not be written later.
            async with asyncio.timeout_at(min(one.deadline for one in batch)):
                outcomes = await write_batch(self._pool, [one.entry for one in batch], self.tally)
        except DatabaseFailure as error:
            failed = [(one, error) for one in batch]
        except Exception as error:  # a bug of ours: its callers are to know, and the queue goes on
            for one in batch:
                _answer(one, error)
        else:
            self._delay_s = DELAY_MIN_S
            for one, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception) and not is_settled(outcome):
                    failed.append((one, outcome))
                else:
                    _answer(one, outcome)
        if failed:
            await self._put_back(failed)
        self._busy.difference_update(one.entry.key for one in batch)

    async def _put_back(self, failed: list[tuple[_Waiting, Exception]]) -> None:
        """Wait a little, then queue again those that still have time; the others are refused."""
        pause_s = self._delay_s * self._jitter.uniform(0.5, 1.5)
        if self._delay_s == DELAY_MIN_S:  # One line for an outage, however often it is met.
            extra = {"reason": reason(failed[0][1]), "budget_s": self._patience_s}
            log.warning("database_retry", extra=extra)
        self._delay_s = min(self._delay_s * 2, DELAY_MAX_S)
        again_at = asyncio.get_running_loop().time() + pause_s
        kept = []
        for one, error in failed:
            if verdict(error) is Verdict.WAIT and again_at <= one.deadline:
                kept.append(one)
            else:
                refused = StorageUnavailable(
                    f"the database does not answer, so nothing was saved: {reason(error)}"
                )
                refused.__cause__ = error
                _answer(one, refused)
        if kept:
            await asyncio.sleep(pause_s)
            self._queue.extendleft(reversed(kept))


def _answer(one: _Waiting, outcome: Outcome) -> None:
    if one.answer.done():
        return  # its caller waits no longer
    if isinstance(outcome, Exception):
        one.answer.set_exception(outcome)
    else:
        one.answer.set_result(outcome)
