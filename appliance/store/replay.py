"""The way out of the journal: its entries into the database, in the order of each conversation,
once each.

Owns when it is tried, what is passed over for a while and what is kept aside for good. Never:
appends to the journal, or reads for anybody.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from appliance.database_failure import DatabaseFailure
from appliance.errors import ApplianceError
from appliance.store.entries import Entry, Key
from appliance.store.journal import Journal
from appliance.store.journal_aside import Refusal
from appliance.store.migrate import made_at
from appliance.store.pool import Pool, acquired
from appliance.store.retry import reason, retrying
from appliance.store.turn_batch import (
    BatchLimits,
    Outcome,
    Tally,
    choose,
    is_settled,
    write_batch,
)
from appliance.store.write_gate import WriteGate, Writes

log = logging.getLogger("appliance.store")

PROBE_MIN_S = 0.25
PROBE_MAX_S = 2.0
"""Between two tries of a database that takes no writes. A try is one entry: a refused statement, no
ID."""

HELD_S = 5.0
"""How long the entries of a conversation that somebody else holds are passed over, from when its lock
was waited for in vain: longer than that wait (LOCK_TIMEOUT_MS), so that the others get on."""

ONE = BatchLimits(entries=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay did."""

    entries: int = 0
    refused: int = 0


class Replay:
    """Writes what the journal holds. `step` is one batch; `run` goes on for ever."""

    def __init__(
        self,
        journal: Journal,
        pool: Pool,
        gate: WriteGate,
        *,
        limits: BatchLimits | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._gate = gate
        self._limits = limits or BatchLimits()
        self._jitter = jitter or random.Random()
        self._held_until: dict[Key, float] = {}
        self._pause_s = PROBE_MIN_S
        self.tally = Tally()

    async def run(self) -> None:
        """Replay whenever there is something to, for ever."""
        while True:
            try:
                await self._once()
            except Exception as error:
                # A disk that takes no mark, or a bug: the entries stay, and the next try is another one.
                told = None if isinstance(error, OSError | ApplianceError) else error
                log.error("journal_not_replayed", extra={"reason": _words(error)}, exc_info=told)
                await self._pause()

    async def bind(self, *, budget_s: float) -> None:
        """Hold the journal to this database, for what will wait in it.

        Raises JournalForeign where another's entries wait, StorageUnavailable when the database is away
        for so long.
        """
        await retrying(self._bind, budget_s=budget_s, jitter=self._jitter)

    async def drain(self, wait_s: float) -> Replayed:
        """Replay until nothing waits, or until nothing could be written for so long.

        Raises JournalForeign, OSError.
        """
        clock = asyncio.get_running_loop().time
        entries, refused, until = 0, 0, clock() + wait_s
        while len(self._journal.overlay) and clock() < until:
            is_away = self._gate.writes is Writes.MAINTENANCE
            done = None if is_away else await self.step()
            if done is None:
                await self._pause()
                continue
            entries, refused = entries + done.entries, refused + done.refused
            until = clock() + wait_s
        return Replayed(entries=entries, refused=refused)

    async def _once(self) -> None:
        if not len(self._journal.overlay):
            await self._wait_for_entries()
            return
        if self._gate.writes is Writes.MAINTENANCE or await self.step() is None:
            await self._pause()

    async def step(self) -> Replayed | None:
        """Write one batch; None when nothing could be written. Raises OSError, JournalFull, and
        JournalForeign where the database is not the one that the entries wait for."""
        batch = self._next()
        if not batch:
            return None
        try:
            await self._bind()
            outcomes = await write_batch(self._pool, [entry for _, entry in batch], self.tally)
        except DatabaseFailure as error:
            self._gate.close(error)
            return None
        self._gate.open()
        done = await self._settle(batch, outcomes)
        if done is not None:
            self._pause_s = PROBE_MIN_S
        return done

    async def _bind(self) -> None:
        # Asked each time: behind one name there may be another database than a moment ago.
        async with acquired(self._pool) as connection:
            database = await made_at(connection)
        await self._journal.bind(database)

    def _next(self) -> list[tuple[int, Entry]]:
        """The next batch. Who was held is tried again alone, and when there is nothing else: its lock is
        waited for."""
        limits = self._limits if self._gate.writes is Writes.OPEN else ONE
        batch = self._chosen(self._held_until.keys(), limits)
        if not batch:
            now = asyncio.get_running_loop().time()
            held = {key for key, until in self._held_until.items() if until > now}
            batch = self._chosen(held, ONE)
        return batch

    def _chosen(self, busy: Collection[Key], limits: BatchLimits) -> list[tuple[int, Entry]]:
        # No further than the batch needs: a hundred thousand conversations may wait.
        looked_at: list[tuple[int, Entry]] = []

        def entries() -> Iterator[Entry]:
            for one in self._journal.overlay.firsts():
                looked_at.append(one)
                yield one[1]

        return [looked_at[place] for place in choose(entries(), busy=busy, limits=limits)]

    async def _settle(
        self, batch: Sequence[tuple[int, Entry]], outcomes: Sequence[Outcome]
    ) -> Replayed | None:
        """Let go of what is stored or refused for good; None when that was nothing."""
        stored: list[int] = []
        refusals: list[Refusal] = []
        for (number, entry), outcome in zip(batch, outcomes, strict=True):
            if not is_settled(outcome):
                self._hold(entry)
                continue
            self._held_until.pop(entry.key, None)
            if isinstance(outcome, Exception):
                refusals.append(Refusal(number=number, entry=entry, reason=_words(outcome)))
            else:
                stored.append(number)
        # What is stored is let go of first: a disk too full to write a refusal down keeps nobody else.
        if stored:
            await self._journal.settle(stored)
        refused = await self._let_go_of(refusals)
        return Replayed(entries=len(stored), refused=refused) if stored or refused else None

    async def _let_go_of(self, refusals: Sequence[Refusal]) -> int:
        """Keep refusals aside, and settle them; how many. Where they cannot be kept they wait on."""
        if not refusals:
            return 0
        try:
            await self._journal.keep_refused(refusals)
        except OSError as error:
            log.error("journal_refusals_not_kept", extra={"error": type(error).__name__})
            for one in refusals:
                self._hold(one.entry)
            return 0
        await self._journal.settle([one.number for one in refusals])
        return len(refusals)

    def _hold(self, entry: Entry) -> None:
        """Pass over the entries of a conversation for a while."""
        self._held_until[entry.key] = asyncio.get_running_loop().time() + HELD_S

    async def _wait_for_entries(self) -> None:
        """Until there is something to replay. A gate that was closed meanwhile is opened again: the next
        turn finds out."""
        self._journal.changed.clear()
        if self._gate.writes is Writes.CLOSED:
            await self._pause()
            if not len(self._journal.overlay):
                self._gate.open()
            return
        try:
            async with asyncio.timeout(PROBE_MAX_S):
                await self._journal.changed.wait()
        except TimeoutError:
            return

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s * self._jitter.uniform(0.75, 1.25))
        self._pause_s = min(self._pause_s * 2, PROBE_MAX_S)
        await self._journal.top_up()


def _words(error: Exception) -> str:
    return error.message if isinstance(error, ApplianceError) else reason(error)
