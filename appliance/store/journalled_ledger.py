"""The ledger of a server: what the database cannot take goes to the journal, and reads see both.

Owns the choice between database and journal. Turns and new conversations are journalled. What
moves, renames or deletes is refused while it cannot be written: replayed later it could undo what
was done since, and a deletion that is only promised is none. Never: replays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from appliance.errors import NotFound, StorageUnavailable
from appliance.store.entries import ConversationEntry, Key, TurnEntry
from appliance.store.journal import Journal
from appliance.store.ledger import (
    PAGE_CONVERSATIONS_MAX,
    READ_RETRY_S,
    TREE_MESSAGES_MAX,
    Ledger,
    checked_title,
)
from appliance.store.overlay import TICK, Held, after_turn
from appliance.store.pool import Connection, Pool
from appliance.store.recent import Recent
from appliance.store.records import (
    Conversation,
    ConversationChange,
    Cursor,
    FinishedTurn,
    Message,
    NewConversation,
    Past,
    StoredTurn,
)
from appliance.store.turn_batch import Tally
from appliance.store.write_faults import Fault, fault_of
from appliance.store.write_gate import WriteGate, Writes

log = logging.getLogger("appliance.store")

T = TypeVar("T")

JOURNAL_AFTER_S = 1.0
"""How long a finished turn waits for the database before it goes to the journal. A local PostgreSQL that
crashed is back within a second as a rule, and then nothing needs the journal; a reader whose reply is
complete waits no longer for the end of the stream."""


class JournalledLedger(Ledger):
    """A Ledger that goes on without its database."""

    def __init__(
        self,
        pool: Pool,
        journal: Journal,
        gate: WriteGate,
        *,
        write_retry_s: float = 30.0,
        journal_after_s: float = JOURNAL_AFTER_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: random.Random | None = None,
    ) -> None:
        super().__init__(
            pool, write_retry_s=write_retry_s, turn_retry_s=journal_after_s, jitter=jitter
        )
        self.journal = journal
        self.gate = gate
        self._journal_after_s = journal_after_s
        self._now = clock
        self._overlay = journal.overlay
        self._recent = Recent()
        self._written_at = float("-inf")

    @property
    def tally(self) -> Tally:
        """What went straight into the database."""
        return self._writer.tally

    # Turns and new conversations

    async def append_turn(self, turn: FinishedTurn) -> StoredTurn:
        """As the ledger's; raises StorageUnavailable only when the journal takes the turn neither."""
        key = (turn.tenant, turn.conversation_id)
        at = self._time_of(key)
        stored = await self._in_database(key, lambda: self._writer.append(turn, at))
        if stored is None:
            stored = await self._in_journal(turn, at)
        seen = self._recent.get(key)
        if seen is not None and not stored.replayed:
            at = stored.assistant.created_at
            self._recent.put(after_turn(seen.conversation, turn, at), stored)
        return stored

    async def open(self, opened: NewConversation) -> Conversation:
        """As the ledger's; raises StorageUnavailable only when the journal takes it neither."""
        checked_title(opened.title)
        key = (opened.tenant, opened.conversation_id)
        conversation = await self._in_database(key, lambda: self._writer.open(opened))
        if conversation is None:
            self.require_room(1)
            held = self._overlay.of(key)
            whole = None if held is None else held.whole
            if whole is not None:
                return whole
            journalled = await self.journal.append(ConversationEntry(opened=opened))
            assert isinstance(journalled, Conversation)
            conversation = journalled
        self._recent.put(conversation)
        return conversation

    def require_room(self, turns: int) -> None:
        """Raise StorageUnavailable when the database takes no writes, and so many turns more would
        not fit into the journal."""
        if self.gate.writes is not Writes.OPEN and not self.journal.has_room(turns):
            raise StorageUnavailable(
                "the database takes no writes, and the journal for finished turns is full: "
                "a reply could not be saved, so none is begun"
            )

    async def _in_database(self, key: Key, write: Callable[[], Awaitable[T]]) -> T | None:
        """What the database stored; None when it is the journal's turn."""
        if self.gate.writes is not Writes.OPEN or self._overlay.of(key) is not None:
            return None
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._journal_after_s):
                written = await write()
        except TimeoutError as error:
            # Whether it is stored is not known; stored again from the journal it changes nothing. If
            # others were written meanwhile, it is this conversation that somebody holds.
            if self._written_at < began:
                self.gate.close(error)
        except StorageUnavailable as error:
            cause = error.__cause__ or error
            if fault_of(cause) is Fault.DATABASE:
                self.gate.close(cause)
        else:
            self._written_at = clock()
            return written
        return None

    async def _in_journal(self, turn: FinishedTurn, at: datetime) -> StoredTurn:
        held = self._overlay.of((turn.tenant, turn.conversation_id))
        before = None if held is None else held.turns.get((turn.parent_id, turn.turn_key))
        if before is not None:
            return before
        if held is not None:
            at = max(at, held.last_at + TICK)
        stored = await self.journal.append(TurnEntry(turn=turn, at=at))
        assert isinstance(stored, StoredTurn)
        return stored

    def _time_of(self, key: Key) -> datetime:
        """When a turn ends that ends now, wherever it is written: later than all that is known of its
        conversation, so that what waits is told from what the database has by their times."""
        at = self._now()
        if (seen := self._recent.get(key)) is not None:
            at = max(at, seen.conversation.updated_at + TICK)
        return at

    # Reads

    async def get(self, tenant: str, conversation_id: UUID) -> Conversation:
        """As the ledger's; a conversation that this process knows is told while the database is away."""
        key = (tenant, conversation_id)
        held, seen = self._overlay.of(key), self._recent.get(key)
        if held is not None and (whole := held.whole) is not None:
            return whole
        if seen is not None and self.gate.are_reads_away:
            return seen.conversation
        read = super().get
        try:
            stored, held = await self._with_overlay(key, lambda: read(tenant, conversation_id))
        except StorageUnavailable:
            if seen is None:
                raise
            return seen.conversation
        except NotFound:
            self._recent.forget(key)
            raise
        conversation = stored if held is None else held.over(stored)
        self._recent.put(conversation)
        return conversation

    async def list(
        self, tenant: str, *, limit: int, before: Cursor | None = None
    ) -> tuple[Conversation, ...]:
        """As the ledger's, with those in the journal in their places."""
        rows = min(limit, PAGE_CONVERSATIONS_MAX)
        held = self._overlay.of_tenant(tenant)
        # Where one that is held stands is known from its newest entry alone; the first of them are shown.
        places = sorted(((one.last_at, key[1]) for key, one in held.items()), reverse=True)
        if before is not None:
            places = [place for place in places if place < _place(before)]
        known = [self._known((tenant, conversation_id)) for _, conversation_id in places[:rows]]
        shown: list[Conversation] = []
        for found, (_, conversation_id) in zip(known, places, strict=False):
            # One that was deleted meanwhile is no fault of the list: its entries will be refused.
            with contextlib.suppress(NotFound):
                shown.append(found or await self.get(tenant, conversation_id))
        others: list[Conversation] = []
        place = before
        while len(others) < rows:
            page = await super().list(tenant, limit=rows, before=place)
            others += [one for one in page if (tenant, one.conversation_id) not in held]
            if len(page) < rows:
                break
            place = page[-1].cursor
        merged = sorted([*shown, *others], key=lambda one: _place(one.cursor), reverse=True)
        return tuple(merged[:rows])

    def _known(self, key: Key) -> Conversation | None:
        """A conversation as this process knows it without asking."""
        held, seen = self._overlay.of(key), self._recent.get(key)
        whole = None if held is None else held.whole
        return whole or (None if seen is None else seen.conversation)

    async def path(
        self, tenant: str, conversation_id: UUID, leaf_id: UUID, *, after: UUID | None = None
    ) -> tuple[Message, ...]:
        """As the ledger's."""
        key = (tenant, conversation_id)
        read = super().path

        async def once() -> tuple[Message, ...]:
            held = self._overlay.of(key)
            above, below = (leaf_id, []) if held is None else held.path_to(leaf_id, after)
            if above is None:
                return tuple(below)
            stored = await read(tenant, conversation_id, above, after=after)
            return (*stored, *below) if stored else ()

        path, _ = await self._with_overlay(key, once)
        return path

    async def messages(self, tenant: str, conversation_id: UUID) -> tuple[Message, ...]:
        """As the ledger's."""
        key = (tenant, conversation_id)
        held = self._overlay.of(key)
        if held is not None and held.opened is not None:
            return held.tree_over(())
        read = super().messages
        stored, held = await self._with_overlay(key, lambda: read(tenant, conversation_id))
        return stored if held is None else held.tree_over(stored)[-TREE_MESSAGES_MAX:]

    async def message(self, tenant: str, conversation_id: UUID, message_id: UUID) -> Message:
        """As the ledger's."""
        held = self._overlay.of((tenant, conversation_id))
        found = None if held is None else held.messages.get(message_id)
        return found or await super().message(tenant, conversation_id, message_id)

    async def turn(
        self, tenant: str, conversation_id: UUID, parent_id: UUID | None, turn_key: UUID
    ) -> StoredTurn | None:
        """As the ledger's; while the database is away, of the newest turn of a conversation it is
        known."""
        key = (tenant, conversation_id)
        held, seen = self._overlay.of(key), self._recent.get(key)
        found = None if held is None else held.turns.get((parent_id, turn_key))
        if found is not None or (held is not None and held.opened is not None):
            return found
        newest = None if seen is None else seen.turn
        if newest is None:
            return await super().turn(tenant, conversation_id, parent_id, turn_key)
        if newest.turn_key == turn_key and _parent_of(newest) == parent_id:
            return replace(newest, replayed=True)
        try:
            return await super().turn(tenant, conversation_id, parent_id, turn_key)
        except StorageUnavailable:
            # Nothing is below the newest reply; and what is beside it was another message's send.
            if parent_id in (newest.assistant.message_id, _parent_of(newest)):
                return None
            raise

    async def past(self, tenant: str, conversation_id: UUID) -> Past:
        """As the ledger's."""
        held = self._overlay.of((tenant, conversation_id))
        if held is not None and held.opened is not None:
            return Past()
        return await super().past(tenant, conversation_id)

    async def _with_overlay(
        self, key: Key, read: Callable[[], Awaitable[T]]
    ) -> tuple[T, Held | None]:
        """What is read, and what is held to be laid over it; read again when entries went from one to the
        other meanwhile, so that none is missed."""
        while True:
            held = self._overlay.of(key)
            removed = 0 if held is None else held.removed
            result = await read()
            if held is None or held.removed == removed:
                return result, held

    async def _read(
        self, operation: Callable[[Connection], Awaitable[T]], *, budget_s: float = READ_RETRY_S
    ) -> T:
        if self.gate.writes is Writes.CLOSED:
            budget_s = (
                0.0  # who knows that the database is away does not wait for it with each read
            )
        try:
            return await super()._read(operation, budget_s=budget_s)
        except StorageUnavailable:
            self.gate.reads_failed()
            raise

    # What is not journalled

    def require_changeable(self, tenant: str, conversation_id: UUID) -> None:
        """Raise StorageUnavailable while turns of the conversation wait, or the database takes no
        writes."""
        if self._overlay.of((tenant, conversation_id)) is not None:
            raise StorageUnavailable(
                "turns of this conversation wait to be written to the database; "
                "until then only messages can be sent in it"
            )
        if self.gate.writes is not Writes.OPEN:
            raise StorageUnavailable(
                "the database takes no changes now: messages can be sent, and nothing else be changed"
            )

    async def delete(self, tenant: str, conversation_id: UUID) -> None:
        """As the ledger's; refused as `require_changeable` says."""
        self.require_changeable(tenant, conversation_id)
        await super().delete(tenant, conversation_id)
        self._recent.forget((tenant, conversation_id))

    async def delete_branch(
        self, tenant: str, conversation_id: UUID, message_id: UUID
    ) -> Conversation:
        """As the ledger's; refused as `require_changeable` says."""
        self.require_changeable(tenant, conversation_id)
        conversation = await super().delete_branch(tenant, conversation_id, message_id)
        self._recent.put(conversation)
        return conversation

    async def change(
        self, tenant: str, conversation_id: UUID, change: ConversationChange
    ) -> Conversation:
        """As the ledger's; refused as `require_changeable` says."""
        self.require_changeable(tenant, conversation_id)
        conversation = await super().change(tenant, conversation_id, change)
        self._recent.put(conversation)
        return conversation


def _place(cursor: Cursor) -> tuple[datetime, UUID]:
    return cursor.updated_at, cursor.conversation_id


def _parent_of(turn: StoredTurn) -> UUID | None:
    return (turn.user or turn.assistant).parent_id
