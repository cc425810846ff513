"""One batch: entries written in one transaction, without savepoints, at the price of one transaction ID.

Which entries go together is `choose`'s decision, a pure function. Never: retries, waits or queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import asyncpg

from appliance.database_failure import DatabaseFailure
from appliance.errors import ApplianceError, Conflict, NotFound
from appliance.store.entries import ConversationEntry, Entry, Key, TurnEntry
from appliance.store.pool import Connection, Pool, transacted
from appliance.store.queries import load_queries
from appliance.store.records import Conversation, FinishedTurn, StoredTurn, stored_turn
from appliance.store.rows import (
    append_arguments,
    appended_turn,
    open_arguments,
    opened_conversation,
    read_conversation,
    read_messages,
)
from appliance.store.write_faults import Fault, fault_of

E = TypeVar("E", TurnEntry, ConversationEntry)

QUERIES = load_queries("ledger")

Outcome: TypeAlias = StoredTurn | Conversation | Exception
"""Of one entry: what is stored, or why not. An ApplianceError or a bug's error stays; other failures of
the database pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much goes into one batch. A batch is one answer's wait for all of its turns: 32 of them take
    PostgreSQL some 15 ms, share one write of its log, and make 31 transaction IDs for 1,000 turns."""

    entries: int = 32
    bytes: int = 4 << 20


def choose(
    waiting: Iterable[Entry], *, busy: Collection[Key], limits: BatchLimits
) -> tuple[int, ...]:
    """The places in `waiting` of the entries of the next batch; empty when all must wait.

    All are of one kind. Of a conversation the first that waits is taken, and none while the
    conversation is `busy`: so its entries are written in their order, and one that fails takes no
    other along.
    """
    chosen: list[int] = []
    kind: type | None = None
    passed = set(busy)
    size = 0
    for place, entry in enumerate(waiting):
        if entry.key in passed:
            continue
        passed.add(entry.key)
        if kind is not None and type(entry) is not kind:
            continue
        size += entry.bytes
        if chosen and (len(chosen) == limits.entries or size > limits.bytes):
            break
        kind = type(entry)
        chosen.append(place)
    return tuple(chosen)


@dataclass(slots=True)
class Tally:
    """What was written since the process began: committed batches, each one transaction ID, and
    entries."""

    batches: int = 0
    turns: int = 0
    conversations: int = 0


async def write_batch(pool: Pool, entries: Sequence[Entry], tally: Tally) -> list[Outcome]:
    """Write entries of one kind; returns what became of each, in their order, once it is committed.

    When one of them is at fault the batch is split, so that it fails alone. Raises a DatabaseFailure
    when the database takes none; writing them again is harmless.
    """
    try:
        outcomes = await _write(pool, entries)
    except (*DatabaseFailure, ValueError) as error:
        if fault_of(error) is Fault.DATABASE:
            raise
        if len(entries) == 1:
            return [error]
        middle = len(entries) // 2
        first = await write_batch(pool, entries[:middle], tally)
        return [*first, *await write_batch(pool, entries[middle:], tally)]
    tally.batches += 1
    for entry in entries:
        if isinstance(entry, TurnEntry):
            tally.turns += 1
        else:
            tally.conversations += 1
    return outcomes


async def _write(pool: Pool, entries: Sequence[Entry]) -> list[Outcome]:
    async with transacted(pool) as connection:
        if isinstance(entries[0], TurnEntry):
            return await _append(connection, _all_of(TurnEntry, entries))
        return await _open(connection, _all_of(ConversationEntry, entries))


async def _append(connection: Connection, entries: Sequence[TurnEntry]) -> list[Outcome]:
    # All executions go out together and end with one Sync: one round trip.
    arguments = [append_arguments(entry.turn, entry.at) for entry in entries]
    rows = await connection.fetchmany(QUERIES["append_turn"], arguments)
    assert len(rows) == len(entries)
    return [
        await _appended(connection, entry.turn, row)
        for entry, row in zip(entries, rows, strict=True)
    ]


async def _appended(connection: Connection, turn: FinishedTurn, row: asyncpg.Record) -> Outcome:
    """What became of a turn, from the row of `append_turn`."""
    if row["created_at"] is not None:
        return appended_turn(turn, row["created_at"])
    if not row["has_conversation"]:
        return NotFound(f"no conversation {turn.conversation_id}")
    if not row["has_place"]:
        return NotFound(f"no message {turn.parent_id} in {turn.conversation_id}")
    key = (turn.tenant, turn.conversation_id, turn.turn_key, turn.parent_id)
    stored = stored_turn(
        turn.turn_key, read_messages(await connection.fetch(QUERIES["get_turn"], *key))
    )
    if stored is None:
        return Conflict(f"a message of turn {turn.turn_key} has the id of another message")
    return stored


async def _open(connection: Connection, entries: Sequence[ConversationEntry]) -> list[Outcome]:
    arguments = [open_arguments(entry.opened) for entry in entries]
    rows = await connection.fetchmany(QUERIES["open_conversation"], arguments)
    assert len(rows) == len(entries)
    outcomes: list[Outcome] = []
    for entry, row in zip(entries, rows, strict=True):
        if row["is_new"]:
            outcomes.append(opened_conversation(entry.opened))
            continue
        found = await connection.fetchrow(QUERIES["get_conversation"], *entry.key)
        gone = NotFound(f"no conversation {entry.opened.conversation_id}")
        outcomes.append(gone if found is None else read_conversation(found))
    return outcomes


def _all_of(kind: type[E], entries: Sequence[Entry]) -> list[E]:
    found = [entry for entry in entries if isinstance(entry, kind)]
    assert len(found) == len(entries), "a batch is of one kind"
    return found


def is_settled(outcome: Outcome) -> bool:
    """Whether trying again would change nothing."""
    if not isinstance(outcome, Exception) or isinstance(outcome, ApplianceError):
        return True
    return fault_of(outcome) is Fault.ENTRY_BUG
