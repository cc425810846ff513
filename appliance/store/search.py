"""Search of a tenant's conversations by text, and the index behind it.

The index is brought up to date when somebody searches, for as long as a search may take: turns pay
nothing for it, nobody pays who does not search, and no text can keep a message from being stored. While
the database takes no writes, what was indexed before is still found.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import asyncpg

from appliance.errors import StorageUnavailable
from appliance.store.pool import Connection, Pool, retried, retried_write
from appliance.store.queries import load_queries
from appliance.store.records import Conversation, Cursor
from appliance.store.rows import read_conversation
from appliance.store.search_terms import SEARCHED_CHARACTERS_MAX, message_terms, query_terms

T = TypeVar("T")

log = logging.getLogger("appliance.store")

QUERIES = load_queries("search")
READ_RETRY_S = 2.0
CATCH_UP_S = 1.0
BATCH_MESSAGES = 200
BATCH_CHARACTERS_MAX = 200_000
"""What one transaction indexes, so that it stays far below a statement's time limit."""

FOUND_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The newest message of a conversation with the text, and the text around it."""

    message_id: UUID
    role: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A conversation with the text; `match` is None where its title alone has it."""

    conversation: Conversation
    match: Match | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Conversations, last changed first. Unless `is_complete` there are messages not looked at yet."""

    found: tuple[Found, ...]
    is_complete: bool


class Search:
    """Searches of one database; safe to share between all requests of a process.

    Nothing is indexed while `may_write` says no: an operator repairs the database, or it takes no writes.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        may_write: Callable[[], bool] = lambda: True,
        jitter: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._may_write = may_write
        self._jitter = jitter or random.Random()

    async def find(
        self, tenant: str, text: str, *, limit: int, before: Cursor | None = None
    ) -> SearchPage:
        """Conversations whose messages or title hold `text`, whatever the case of its letters.

        At most `limit` of them and never more than FOUND_MAX. Raises InvalidRequest for a text that
        cannot be searched for, StorageUnavailable.
        """
        terms = query_terms(tenant, text)
        is_complete = await self.catch_up(tenant)
        place = (None, None) if before is None else (before.updated_at, before.conversation_id)

        async def operation(connection: Connection) -> Sequence[asyncpg.Record]:
            arguments = (tenant, terms, text, min(limit, FOUND_MAX), *place)
            return await connection.fetch(QUERIES["search"], *arguments, SEARCHED_CHARACTERS_MAX)

        rows = await self._retried(operation, READ_RETRY_S)
        return SearchPage(found=tuple(map(_found, rows)), is_complete=is_complete)

    async def catch_up(self, tenant: str, *, budget_s: float = CATCH_UP_S) -> bool:
        """Index what is new, for about `budget_s`; whether nothing is left that was there before."""
        if not self._may_write():
            return False
        clock = asyncio.get_running_loop().time
        deadline = clock() + budget_s
        try:
            while await self._index_batch(tenant):
                if clock() > deadline:
                    return False
        except StorageUnavailable:
            log.warning("search_index_behind")
            return False
        return True

    async def _index_batch(self, tenant: str) -> bool:
        """Index a batch; False when there was less than one."""

        async def read(connection: Connection) -> Sequence[asyncpg.Record]:
            bounds = (BATCH_MESSAGES, SEARCHED_CHARACTERS_MAX)
            return await connection.fetch(QUERIES["unsearched"], tenant, *bounds)

        rows = await self._retried(read, READ_RETRY_S)
        if not rows:
            return False
        taken = _bounded(rows)
        is_last = len(taken) == len(rows) < BATCH_MESSAGES
        whole = {row["conversation_id"]: row["written"] for row in taken}
        if not is_last:
            del whole[taken[-1]["conversation_id"]]  # there may be more of it
        said = [row for row in taken if row["message_id"] is not None]
        terms = await asyncio.to_thread(_column, tenant, [row["text"] for row in said])
        conversations = [row["conversation_id"] for row in said]
        messages = [row["message_id"] for row in said]

        async def write(connection: Connection) -> None:
            arguments = (tenant, conversations, messages, terms, list(whole), list(whole.values()))
            await connection.execute(QUERIES["add_searched"], *arguments)

        await retried_write(self._pool, write, budget_s=0.0, jitter=self._jitter)
        return not is_last

    async def _retried(self, operation: Callable[[Connection], Awaitable[T]], budget_s: float) -> T:
        return await retried(self._pool, operation, budget_s=budget_s, jitter=self._jitter)


def _bounded(rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    """As many of them, one at least, as have BATCH_CHARACTERS_MAX together."""
    characters = 0
    for number, row in enumerate(rows):
        characters += len(row["text"] or "")
        if characters > BATCH_CHARACTERS_MAX and number > 0:
            return rows[:number]
    return rows


def _column(tenant: str, texts: Sequence[str]) -> list[str]:
    """The terms of each text, written as PostgreSQL writes an array."""
    return ["{" + ",".join(map(str, message_terms(tenant, text))) + "}" for text in texts]


def _found(row: asyncpg.Record) -> Found:
    match = None
    if row["message_id"] is not None:
        match = Match(message_id=row["message_id"], role=row["role"], excerpt=row["excerpt"])
    return Found(conversation=read_conversation(row), match=match)
