"""The ledger: conversations as trees of messages, and turns appended to them, each exactly once.

Owns every statement on conversations and messages. Never: keeps a connection or a transaction between
two calls, changes a message once written, or reads a tenant's row for another tenant.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import asyncpg

from appliance.errors import InvalidRequest, NotFound
from appliance.store.experiments import store_deletion
from appliance.store.pool import Connection, Pool, retried, retried_deed, retried_write
from appliance.store.queries import load_queries
from appliance.store.records import (
    TITLE_CHARACTERS_MAX,
    Conversation,
    ConversationChange,
    Cursor,
    FinishedTurn,
    LiveChats,
    Message,
    NewConversation,
    Past,
    StoredTurn,
    stored_turn,
)
from appliance.store.rows import (
    read_conversation,
    read_message,
    read_messages,
    read_past,
    scene_column,
)
from appliance.store.text import storable
from appliance.store.turn_writer import TurnWriter

T = TypeVar("T")

QUERIES = load_queries("ledger")
READ_RETRY_S = 2.0
PAGE_CONVERSATIONS_MAX = 200
TREE_MESSAGES_MAX = 10_000


class Ledger:
    """Reads and writes of one database; safe to share between all requests of a process.

    Reads are tried again for READ_RETRY_S, writes (all idempotent) for `write_retry_s`, finished turns
    and new conversations for `turn_retry_s` where it is given; then every method raises
    StorageUnavailable. A conversation or message of another tenant is NotFound.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        write_retry_s: float = 30.0,
        turn_retry_s: float | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._write_retry_s = write_retry_s
        self._jitter = jitter or random.Random()
        patience_s = write_retry_s if turn_retry_s is None else turn_retry_s
        self._writer = TurnWriter(pool, patience_s=patience_s, jitter=self._jitter)

    async def open(self, opened: NewConversation) -> Conversation:
        """A new conversation with its greetings; the same id again returns the one that exists.

        Raises InvalidRequest for a title longer than TITLE_CHARACTERS_MAX.
        """
        checked_title(opened.title)
        return await self._writer.open(opened)

    async def get(self, tenant: str, conversation_id: UUID) -> Conversation:
        """One conversation without its messages."""
        return await self._read(lambda connection: _get(connection, tenant, conversation_id))

    async def list(
        self, tenant: str, *, limit: int, before: Cursor | None = None
    ) -> tuple[Conversation, ...]:
        """A tenant's conversations, last changed first.

        At most `limit` of them, and never more than PAGE_CONVERSATIONS_MAX. `before` is the
        cursor of the last conversation of the page before.
        """
        rows = min(limit, PAGE_CONVERSATIONS_MAX)
        if before is None:
            found = await self._fetch("newest_conversations", tenant, rows)
        else:
            place = (before.updated_at, before.conversation_id)
            found = await self._fetch("conversations_before", tenant, rows, *place)
        return tuple(read_conversation(row) for row in found)

    async def path(
        self, tenant: str, conversation_id: UUID, leaf_id: UUID, *, after: UUID | None = None
    ) -> tuple[Message, ...]:
        """The messages from the root to `leaf_id`; with `after`, only those below that ancestor.

        Reads as many rows as it returns. Empty when there is no such message, or `after` is the leaf.
        """
        return read_messages(await self._fetch("path", tenant, conversation_id, leaf_id, after))

    async def messages(self, tenant: str, conversation_id: UUID) -> tuple[Message, ...]:
        """The whole tree, parents first; of a larger one the newest TREE_MESSAGES_MAX messages."""
        rows = await self._fetch("messages", tenant, conversation_id, TREE_MESSAGES_MAX)
        return read_messages(rows)

    async def message(self, tenant: str, conversation_id: UUID, message_id: UUID) -> Message:
        """One message; raises NotFound."""
        rows = await self._fetch("get_message", tenant, conversation_id, message_id)
        if not rows:
            raise NotFound(f"no message {message_id} in conversation {conversation_id}")
        return read_message(rows[0])

    async def turn(
        self, tenant: str, conversation_id: UUID, parent_id: UUID | None, turn_key: UUID
    ) -> StoredTurn | None:
        """The turn stored under this parent and key, None when it was not stored (yet)."""
        rows = await self._fetch("get_turn", tenant, conversation_id, turn_key, parent_id)
        return stored_turn(turn_key, read_messages(rows))

    async def append_turn(self, turn: FinishedTurn) -> StoredTurn:
        """Store a turn and move the head to its reply, in one statement; many turns share a transaction.

        Idempotent by (conversation, parent, turn key): a second append changes nothing, not even the
        head, and returns what the first one stored. Two turns under one parent are siblings; the head
        is at the one stored last. Raises NotFound when conversation or parent is gone, Conflict when
        a message id is taken, StorageUnavailable.
        """
        return await self._writer.append(turn)

    async def change(
        self, tenant: str, conversation_id: UUID, change: ConversationChange
    ) -> Conversation:
        """Change what is given, all of it or, where anything is refused, nothing.

        Raises NotFound when there is no such conversation or message to show, InvalidRequest for a title
        longer than TITLE_CHARACTERS_MAX.
        """
        values: dict[str, object] = {}
        if change.title is not None:
            values["rename"] = checked_title(change.title)
        if change.scene is not None:
            values["set_scene"] = scene_column(change.scene)  # null for one in which nothing is set
        if change.prompt_version is not None:
            values["set_prompt_version"] = change.prompt_version
        if change.head_id is not None:
            values["set_head"] = change.head_id

        async def operation(connection: Connection) -> Conversation:
            changed = await _get(connection, tenant, conversation_id)
            for query, value in values.items():
                row = await connection.fetchrow(QUERIES[query], tenant, conversation_id, value)
                if row is None:
                    missing = f" with a message {change.head_id}" if query == "set_head" else ""
                    raise NotFound(f"no conversation {conversation_id}{missing}")
                changed = read_conversation(row)
            return changed

        return await self._write(operation)

    async def past(self, tenant: str, conversation_id: UUID) -> Past:
        """What its prompts were made with before; raises NotFound."""
        rows = await self._fetch("past", tenant, conversation_id)
        if not rows:
            raise NotFound(f"no conversation {conversation_id}")
        return read_past(rows[0])

    async def live_chats(
        self, name: str, since: datetime, *, default: str
    ) -> tuple[LiveChats, ...]:
        """The conversations of a character with activity since then, by the version they hold.

        A conversation that names no character is of the `default` one.
        """
        rows = await self._fetch("live_chats", name, since, default)
        return tuple(
            LiveChats(
                version=row["prompt_version"],
                conversations=row["conversations"],
                tokens=row["tokens"],
            )
            for row in rows
        )

    async def live_of_version(
        self,
        name: str,
        since: datetime,
        *,
        version: str,
        or_none_yet: bool,
        limit: int,
        default: str,
    ) -> tuple[Conversation, ...]:
        """The conversations of `live_chats` that hold one version (`or_none_yet`: or none), those that
        changed last."""
        rows = await self._fetch(
            "live_of_version", name, since, default, version, or_none_yet, limit
        )
        return tuple(read_conversation(row) for row in rows)

    async def live_groups(self, name: str, since: datetime, *, version: str) -> int:
        """How many groups with activity since then have this version among their members."""
        rows = await self._fetch("live_groups", name, since, version)
        return int(rows[0]["conversations"])

    async def newest_of_character(
        self, name: str, *, limit: int, default: str
    ) -> tuple[Conversation, ...]:
        """The conversations of a character that changed last, of all tenants."""
        rows = await self._fetch("newest_of_character", name, default, limit)
        return tuple(read_conversation(row) for row in rows)

    async def delete(self, tenant: str, conversation_id: UUID) -> None:
        """Remove a conversation and its messages; raises NotFound unless a retry finds it done.

        Of one that counted in an experiment it is kept that there was one.
        """

        async def operation(connection: Connection, is_again: bool) -> None:
            # Two statements: the second sees what was appended while the first waited for the lock.
            row = await connection.fetchrow(QUERIES["delete_conversation"], tenant, conversation_id)
            if row is None and not is_again:
                raise NotFound(f"no conversation {conversation_id}")
            if row is not None and row["is_exposed"]:
                await store_deletion(
                    connection, row["experiment"], row["arm"], tenant, row["user_id"]
                )
            await connection.execute(QUERIES["delete_messages"], tenant, conversation_id)

        await self._do(operation)

    async def delete_branch(
        self, tenant: str, conversation_id: UUID, message_id: UUID
    ) -> Conversation:
        """Remove a message and all below it; returns the conversation.

        A head that was removed moves to the newest leaf left below the branch's parent (a sibling, or
        the parent itself; of the whole conversation when a root was removed). A removed anchor is unset.
        A conversation that loses what prompts began with is untraceable from then on (`Past`).
        """

        async def operation(connection: Connection, is_again: bool) -> Conversation:
            return await _delete_branch(
                connection, tenant, conversation_id, message_id, is_again=is_again
            )

        return await self._do(operation)

    def require_room(self, turns: int) -> None:
        """Raise StorageUnavailable when so many turns that now begin could not be stored anywhere."""

    def require_changeable(self, tenant: str, conversation_id: UUID) -> None:
        """Raise StorageUnavailable while nothing but turns of this conversation can be stored."""

    async def close(self) -> None:
        """Wait for what is being written."""
        await self._writer.close()

    async def _fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        return await self._read(lambda connection: connection.fetch(QUERIES[query], *arguments))

    async def _read(
        self, operation: Callable[[Connection], Awaitable[T]], *, budget_s: float = READ_RETRY_S
    ) -> T:
        return await retried(self._pool, operation, budget_s=budget_s, jitter=self._jitter)

    async def _write(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        budget_s = self._write_retry_s
        return await retried_write(self._pool, operation, budget_s=budget_s, jitter=self._jitter)

    async def _do(self, operation: Callable[[Connection, bool], Awaitable[T]]) -> T:
        budget_s = self._write_retry_s
        return await retried_deed(self._pool, operation, budget_s=budget_s, jitter=self._jitter)


async def _get(connection: Connection, tenant: str, conversation_id: UUID) -> Conversation:
    row = await connection.fetchrow(QUERIES["get_conversation"], tenant, conversation_id)
    if row is None:
        raise NotFound(f"no conversation {conversation_id}")
    return read_conversation(row)


async def _delete_branch(
    connection: Connection, tenant: str, conversation_id: UUID, message_id: UUID, *, is_again: bool
) -> Conversation:
    key = (tenant, conversation_id)
    row = await connection.fetchrow(QUERIES["lock_conversation"], *key)
    if row is None:
        raise NotFound(f"no conversation {conversation_id}")
    before = read_conversation(row)
    top = await connection.fetchrow(QUERIES["get_message"], *key, message_id)
    if top is None:
        if is_again:
            return before
        raise NotFound(f"no message {message_id} in conversation {conversation_id}")
    rows = await connection.fetch(QUERIES["delete_branch"], *key, message_id)
    removed = {row["message_id"] for row in rows}
    head_id, anchor_id = before.head_id, before.anchor_id
    if head_id in removed:
        head_id = await connection.fetchval(QUERIES["newest_leaf"], *key, top["parent_id"])
    if anchor_id in removed:
        anchor_id = None
    is_lost = before.anchor_id is not None or await _begins(connection, key, top["parent_id"])
    row = await connection.fetchrow(QUERIES["repair_head"], *key, head_id, anchor_id, is_lost)
    assert row is not None
    return read_conversation(row)


async def _begins(connection: Connection, key: tuple[str, UUID], parent_id: UUID | None) -> bool:
    """Whether a prompt that is not cut may begin with a message below this one: it is a root, or behind a
    greeting."""
    if parent_id is None:
        return True
    parent = await connection.fetchrow(QUERIES["get_message"], *key, parent_id)
    return parent is not None and parent["parent_id"] is None and parent["role"] == "assistant"


def checked_title(title: str) -> str:
    """The title as it is stored; raises InvalidRequest for one that is too long."""
    if len(title) > TITLE_CHARACTERS_MAX:
        raise InvalidRequest(
            f"a title has at most {TITLE_CHARACTERS_MAX} characters, this one {len(title)}",
            param="title",
        )
    return storable(title)
