"""The ledger: conversations as trees of messages, and turns appended to them, each exactly once.

Owns every statement on conversations and messages. Never: keeps a connection or a transaction between
two calls, changes a message once written, or reads a tenant's row for another tenant.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from appliance.errors import Conflict, InvalidRequest, NotFound
from appliance.store.pool import Connection, Pool, acquired
from appliance.store.queries import load_queries
from appliance.store.retry import retrying
from appliance.store.text import storable
from appliance.store.values import (
    TITLE_CHARACTERS_MAX,
    Conversation,
    Cursor,
    FinishedTurn,
    Message,
    NewMessage,
    StoredTurn,
    stored_turn,
)

T = TypeVar("T")

QUERIES = load_queries("ledger")
READ_RETRY_S = 2.0
PAGE_CONVERSATIONS_MAX = 200
TREE_MESSAGES_MAX = 10_000


class Ledger:
    """Reads and writes of one database; safe to share between all requests of a process.

    Reads are tried again for READ_RETRY_S, writes (all idempotent) for `write_retry_s`; then every
    method raises StorageUnavailable. A conversation or message of another tenant is NotFound.
    """

    def __init__(self, pool: Pool, *, write_retry_s: float, jitter: random.Random) -> None:
        self._pool = pool
        self._write_retry_s = write_retry_s
        self._jitter = jitter

    async def create(
        self, tenant: str, conversation_id: UUID, *, title: str = "", character: str | None = None
    ) -> Conversation:
        """A new, empty conversation; the same id again returns the one that exists."""
        checked = _checked_title(title)

        async def operation(connection: Connection) -> Conversation:
            await connection.execute(
                QUERIES["create_conversation"], tenant, conversation_id, checked, character
            )
            return await _get(connection, tenant, conversation_id)

        return await self._write(operation)

    async def get(self, tenant: str, conversation_id: UUID) -> Conversation:
        """One conversation without its messages."""
        return await self._read(lambda connection: _get(connection, tenant, conversation_id))

    async def list(
        self, tenant: str, *, limit: int, before: Cursor | None = None
    ) -> tuple[Conversation, ...]:
        """A tenant's conversations, last changed first; at most `limit`, PAGE_CONVERSATIONS_MAX in any case.

        `before` is the cursor of the last conversation of the page before.
        """
        rows = min(limit, PAGE_CONVERSATIONS_MAX)
        if before is None:
            found = await self._fetch("newest_conversations", tenant, rows)
        else:
            place = (before.updated_at, before.conversation_id)
            found = await self._fetch("conversations_before", tenant, rows, *place)
        return tuple(_conversation(row) for row in found)

    async def path(
        self, tenant: str, conversation_id: UUID, leaf_id: UUID, *, after: UUID | None = None
    ) -> tuple[Message, ...]:
        """The messages from the root to `leaf_id`; with `after`, only those below that ancestor.

        Reads as many rows as it returns. Empty when there is no such message, or `after` is the leaf.
        """
        return _messages(await self._fetch("path", tenant, conversation_id, leaf_id, after))

    async def messages(self, tenant: str, conversation_id: UUID) -> tuple[Message, ...]:
        """The whole tree, parents first; of a larger one the newest TREE_MESSAGES_MAX messages."""
        rows = await self._fetch("messages", tenant, conversation_id, TREE_MESSAGES_MAX)
        return _messages(rows)

    async def message(self, tenant: str, conversation_id: UUID, message_id: UUID) -> Message:
        """One message; raises NotFound."""
        rows = await self._fetch("get_message", tenant, conversation_id, message_id)
        if not rows:
            raise NotFound(f"no message {message_id} in conversation {conversation_id}")
        return _message(rows[0])

    async def turn(
        self, tenant: str, conversation_id: UUID, parent_id: UUID | None, turn_key: UUID
    ) -> StoredTurn | None:
        """The turn stored under this parent and key, None when it was not stored (yet)."""
        rows = await self._fetch("get_turn", tenant, conversation_id, turn_key)
        return stored_turn(_messages(rows), parent_id)

    async def append_turn(self, turn: FinishedTurn) -> StoredTurn:
        """Store a turn and move the head to its reply, in one statement and transaction.

        Idempotent by (conversation, parent, turn key): a second append changes nothing, not even the
        head, and returns what the first one stored. Two turns under one parent are siblings; the head
        is at the one stored last. Raises NotFound when conversation or parent is gone, Conflict when
        a message id is taken, StorageUnavailable.
        """
        arguments = _arguments(turn)

        async def operation(connection: Connection) -> StoredTurn:
            row = await connection.fetchrow(QUERIES["append_turn"], *arguments)
            assert row is not None
            if row["created_at"] is not None:
                return _appended(turn, row["created_at"])
            if not row["has_conversation"]:
                raise NotFound(f"no conversation {turn.conversation_id}")
            if not row["has_place"]:
                raise NotFound(f"no message {turn.parent_id} in {turn.conversation_id}")
            key = (turn.tenant, turn.conversation_id, turn.turn_key)
            rows = await connection.fetch(QUERIES["get_turn"], *key)
            stored = stored_turn(_messages(rows), turn.parent_id)
            if stored is None:
                raise Conflict(f"a message of turn {turn.turn_key} has the id of another message")
            return stored

        return await self._write(operation)

    async def set_head(self, tenant: str, conversation_id: UUID, head_id: UUID) -> Conversation:
        """Show another leaf (a swipe, a branch); raises NotFound when there is no such message."""
        return await self._change("set_head", tenant, conversation_id, head_id)

    async def rename(self, tenant: str, conversation_id: UUID, title: str) -> Conversation:
        """Set the title; raises InvalidRequest when it is longer than TITLE_CHARACTERS_MAX."""
        return await self._change("rename", tenant, conversation_id, _checked_title(title))

    async def delete(self, tenant: str, conversation_id: UUID) -> None:
        """Remove a conversation and its messages; raises NotFound unless a retry finds it done."""
        tries = 0

        async def operation(connection: Connection) -> None:
            nonlocal tries
            tries += 1
            async with connection.transaction():
                # Two statements: the second sees what was appended while the first waited for the lock.
                status = await connection.execute(
                    QUERIES["delete_conversation"], tenant, conversation_id
                )
                if status == "DELETE 0" and tries == 1:
                    raise NotFound(f"no conversation {conversation_id}")
                await connection.execute(QUERIES["delete_messages"], tenant, conversation_id)

        await self._write(operation)

    async def delete_branch(
        self, tenant: str, conversation_id: UUID, message_id: UUID
    ) -> Conversation:
        """Remove a message and all below it; returns the conversation.

        A head that was removed moves to the newest leaf left below the branch's parent (a sibling, or
        the parent itself; of the whole conversation when a root was removed). A removed anchor is unset.
        """
        tries = 0

        async def operation(connection: Connection) -> Conversation:
            nonlocal tries
            tries += 1
            async with connection.transaction():
                return await _delete_branch(
                    connection, tenant, conversation_id, message_id, again=tries > 1
                )

        return await self._write(operation)

    async def _change(self, query: str, tenant: str, conversation_id: UUID, value: object) -> Any:
        async def operation(connection: Connection) -> Conversation:
            row = await connection.fetchrow(QUERIES[query], tenant, conversation_id, value)
            if row is None:
                raise NotFound(f"no such conversation or message: {conversation_id}")
            return _conversation(row)

        return await self._write(operation)

    async def _fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        return await self._read(lambda connection: connection.fetch(QUERIES[query], *arguments))

    async def _read(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._retrying(operation, READ_RETRY_S)

    async def _write(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._retrying(operation, self._write_retry_s)

    async def _retrying(
        self, operation: Callable[[Connection], Awaitable[T]], budget_s: float
    ) -> T:
        async def once() -> T:
            async with acquired(self._pool) as connection:
                return await operation(connection)

        return await retrying(once, budget_s=budget_s, jitter=self._jitter)


async def _get(connection: Connection, tenant: str, conversation_id: UUID) -> Conversation:
    row = await connection.fetchrow(QUERIES["get_conversation"], tenant, conversation_id)
    if row is None:
        raise NotFound(f"no conversation {conversation_id}")
    return _conversation(row)


async def _delete_branch(
    connection: Connection, tenant: str, conversation_id: UUID, message_id: UUID, *, again: bool
) -> Conversation:
    key = (tenant, conversation_id)
    row = await connection.fetchrow(QUERIES["lock_conversation"], *key)
    if row is None:
        raise NotFound(f"no conversation {conversation_id}")
    before = _conversation(row)
    top = await connection.fetchrow(QUERIES["get_message"], *key, message_id)
    if top is None:
        if again:
            return before
        raise NotFound(f"no message {message_id} in conversation {conversation_id}")
    rows = await connection.fetch(QUERIES["delete_branch"], *key, message_id)
    removed = {row["message_id"] for row in rows}
    head_id, anchor_id = before.head_id, before.anchor_id
    if head_id in removed:
        head_id = await connection.fetchval(QUERIES["newest_leaf"], *key, top["parent_id"])
    if anchor_id in removed:
        anchor_id = None
    row = await connection.fetchrow(QUERIES["repair_head"], *key, head_id, anchor_id)
    assert row is not None
    return _conversation(row)


def _checked_title(title: str) -> str:
    if len(title) > TITLE_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a title has at most {TITLE_CHARACTERS_MAX} characters, this one {len(title)}",
            param="title",
        )
    return storable(title)


def _arguments(turn: FinishedTurn) -> tuple[object, ...]:
    title = None if turn.title is None else storable(turn.title)[:TITLE_CHARACTERS_MAX]
    user, reply = turn.user, turn.assistant
    return (
        *(turn.tenant, turn.conversation_id, turn.turn_key, turn.parent_id, title, turn.anchor_id),
        *((None,) * 5 if user is None else _columns(user)),
        *_columns(reply),
        *(reply.finish_reason, reply.prompt_tokens, reply.prefix_hit_tokens),
    )


def _columns(message: NewMessage) -> tuple[object, ...]:
    return (
        *(message.message_id, message.role, storable(message.text)),
        *(message.token_ids, message.tokenizer),
    )


def _appended(turn: FinishedTurn, created_at: datetime) -> StoredTurn:
    user = None if turn.user is None else _written(turn.user, turn.parent_id, created_at)
    parent_id = turn.parent_id if user is None else user.message_id
    assistant = _written(turn.assistant, parent_id, created_at)
    return StoredTurn(user=user, assistant=assistant, replayed=False)


def _written(message: NewMessage, parent_id: UUID | None, created_at: datetime) -> Message:
    return Message(
        message_id=message.message_id,
        parent_id=parent_id,
        role=message.role,
        text=storable(message.text),
        token_ids=message.token_ids,
        tokenizer=message.tokenizer,
        finish_reason=message.finish_reason,
        prompt_tokens=message.prompt_tokens,
        prefix_hit_tokens=message.prefix_hit_tokens,
        created_at=created_at,
    )


def _messages(rows: Iterable[asyncpg.Record]) -> tuple[Message, ...]:
    return tuple(_message(row) for row in rows)


def _message(row: asyncpg.Record) -> Message:
    return Message(
        message_id=row["message_id"],
        parent_id=row["parent_id"],
        role=row["role"],
        text=row["text"],
        token_ids=row["token_ids"],
        tokenizer=row["tokenizer"],
        finish_reason=row["finish_reason"],
        prompt_tokens=row["prompt_tokens"],
        prefix_hit_tokens=row["prefix_hit_tokens"],
        created_at=row["created_at"],
    )


def _conversation(row: asyncpg.Record) -> Conversation:
    return Conversation(
        tenant=row["tenant"],
        conversation_id=row["conversation_id"],
        title=row["title"],
        character=row["character_id"],
        head_id=row["head_id"],
        anchor_id=row["anchor_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
