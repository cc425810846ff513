"""Stored conversations apart from their turns: opened, listed, shown, renamed, deleted.

What would pull the ground from under a running turn stops it first and waits until it is stored.
Never: generates, or runs a statement of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from appliance.chat.catalog import Catalog
from appliance.chat.prompting import off_loop
from appliance.chat.running import RunningTurns
from appliance.chat.scene import user_of
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.store.ledger import Ledger
from appliance.store.records import (
    Conversation,
    Cursor,
    Message,
    NewConversation,
    NewGreeting,
    Scene,
)
from appliance.tokens import count


class Conversations:
    """Conversations of all tenants. Safe to share between all requests.

    `running` are the claims that the turns of these conversations hold. Every method raises
    StorageUnavailable, and NotFound for what is another tenant's.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        running: RunningTurns,
        catalog: Catalog,
        new_id: Callable[[], UUID] = uuid4,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ledger = ledger
        self._running = running
        self._catalog = catalog
        self._new_id = new_id
        self._clock = clock

    async def open(
        self,
        *,
        tenant: str,
        title: str = "",
        character: str | None = None,
        scene: Scene | None = None,
    ) -> Conversation:
        """A new conversation, with the character's greetings as siblings if it has any, the first shown.

        Raises NotFound for an unknown character, InvalidRequest for a title that is too long.
        """
        chosen = self._catalog.current.get(character)
        opened = NewConversation(
            tenant=tenant,
            conversation_id=self._new_id(),
            created_at=self._clock(),
            title=title,
            character=chosen.character.id,
            scene=scene or Scene(),
        )
        frozen = Beginning(seed=opened.conversation_id.bytes, started=opened.created_at)
        chars = 0 if chosen.card is None else len(chosen.card.text)
        user = user_of(opened.scene)
        greetings = await off_loop(chars, lambda: chosen.greetings(frozen, user=user))
        if not greetings:
            return await self._ledger.open(opened)
        said = tuple(
            NewGreeting(message_id=self._new_id(), turn_key=self._new_id(), text=greeting.text)
            for greeting in greetings
        )
        return await self._ledger.open(
            replace(opened, greetings=said, prompt_version=chosen.version)
        )

    async def list(
        self, *, tenant: str, limit: int, before: Cursor | None = None
    ) -> tuple[Conversation, ...]:
        """At most `limit` conversations, last changed first, older than `before`."""
        return await self._ledger.list(tenant, limit=limit, before=before)

    async def get(self, *, tenant: str, conversation_id: UUID) -> Conversation:
        """One conversation without its messages."""
        return await self._ledger.get(tenant, conversation_id)

    async def messages(self, *, tenant: str, conversation_id: UUID) -> tuple[Message, ...]:
        """The whole tree, parents first."""
        return await self._ledger.messages(tenant, conversation_id)

    async def message(self, *, tenant: str, conversation_id: UUID, message_id: UUID) -> Message:
        """One message."""
        return await self._ledger.message(tenant, conversation_id, message_id)

    async def set_head(self, *, tenant: str, conversation_id: UUID, head_id: UUID) -> Conversation:
        """Show another leaf; a running turn shows its own again when it is stored."""
        return await self._ledger.set_head(tenant, conversation_id, head_id)

    async def rename(self, *, tenant: str, conversation_id: UUID, title: str) -> Conversation:
        """Set the title; raises InvalidRequest for one that is too long."""
        return await self._ledger.rename(tenant, conversation_id, title)

    async def set_prompt_version(
        self, *, tenant: str, conversation_id: UUID, reference: str
    ) -> tuple[str | None, Conversation]:
        """(version before, conversation) once its next turns are made with another version.

        `reference` is a label or the beginning of a version of its character. A turn that runs is stored
        as it is. Raises NotFound and InvalidRequest for what means no version, TemplateError for one that
        cannot be used.
        """
        before = await self._ledger.get(tenant, conversation_id)
        chosen = await self._catalog.resolve(before.character, reference)
        after = await self._ledger.set_prompt_version(tenant, conversation_id, chosen.version)
        return before.prompt_version, after

    async def set_scene(self, conversation: Conversation, scene: Scene) -> tuple[int, Conversation]:
        """Set persona and note; returns how many tokens the next turn computes again for a changed
        persona: all but the character's text before it. A running turn keeps what it began with."""
        key = (conversation.tenant, conversation.conversation_id)
        changed = await self._ledger.set_scene(*key, scene)
        if scene.persona == conversation.scene.persona or conversation.head_id is None:
            return 0, changed
        head = await self._ledger.message(*key, conversation.head_id)
        return (head.prompt_tokens or 0) + count(head.token_ids or b""), changed

    async def delete(self, *, tenant: str, conversation_id: UUID) -> None:
        """Remove a conversation and its messages.

        A running turn ends before, with the reason `cancelled`. Raises Conflict when it does not end
        in time.
        """
        self._ledger.require_changeable(tenant, conversation_id)  # else no turn is stopped
        async with self._running.none_of((tenant, conversation_id)):
            await self._ledger.delete(tenant, conversation_id)

    async def delete_branch(
        self, *, tenant: str, conversation_id: UUID, message_id: UUID
    ) -> Conversation:
        """Remove a message and all below it; returns the conversation with its new head.

        A running turn ends before, as in `delete`.
        """
        self._ledger.require_changeable(tenant, conversation_id)
        await self._ledger.message(tenant, conversation_id, message_id)  # else no turn is stopped
        async with self._running.none_of((tenant, conversation_id)):
            return await self._ledger.delete_branch(tenant, conversation_id, message_id)
