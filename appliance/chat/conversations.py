"""Stored conversations apart from their turns: opened, listed, shown, renamed, deleted.

What would pull the ground from under a running turn stops it first and waits until it is stored.
Never: generates, or runs a statement of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import msgspec

from appliance.chat.catalog import Catalog
from appliance.chat.prompting import off_loop
from appliance.chat.running import RunningTurns
from appliance.chat.scene import user_of
from appliance.chat.trials import Assigned, Trials
from appliance.errors import InvalidRequest, NotFound, StorageUnavailable, TemplateError
from appliance.prompt.cast import Cast
from appliance.prompt.characters import DEFAULT_CHARACTER, CharacterVersion
from appliance.prompt.groups import MEMBERS_MAX
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.store.ledger import Ledger
from appliance.store.records import (
    Conversation,
    Cursor,
    Member,
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
        trials: Trials | None = None,
        new_id: Callable[[], UUID] = uuid4,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ledger = ledger
        self._running = running
        self._catalog = catalog
        self._trials = trials or Trials()
        self._new_id = new_id
        self._clock = clock

    async def open(
        self,
        *,
        tenant: str,
        title: str = "",
        character: str | None = None,
        scene: Scene | None = None,
        members: Sequence[str] = (),
        user: str | None = None,
    ) -> Conversation:
        """A new conversation, with its greetings as siblings if there are any, the first shown.

        `user` is who talks, as the tenant's application tells users apart: where an experiment runs, the
        conversation is pinned to the version of the user's arm. With `members` it is a group of these
        characters, `character` (the first without one) among them. Raises NotFound for an unknown
        character, InvalidRequest for a title that is too long and members that make no group,
        InvalidCard for a greeting that its macros make too large; then there is no conversation.
        """
        chosen = self._catalog.current.get(character or next(iter(members), None))
        scene = scene or Scene()
        assigned = None
        if not members:
            chosen, assigned = await self._tried(chosen, tenant, user)
        if members:
            found = self._members(members, (), own=chosen.character.id)
            scene = msgspec.structs.replace(scene, members=found)
        opened = NewConversation(
            tenant=tenant,
            conversation_id=self._new_id(),
            created_at=self._clock(),
            title=title,
            character=chosen.character.id,
            scene=scene,
            user=user,
            trial=None if assigned is None else assigned.trial,
            exposes=assigned is not None and assigned.exposes,
        )
        greetings = await self._greetings(opened, chosen)
        if greetings or assigned is not None:
            opened = replace(opened, greetings=greetings, prompt_version=chosen.version)
        return await self._ledger.open(opened)

    async def _tried(
        self, chosen: CharacterVersion, tenant: str, user: str | None
    ) -> tuple[CharacterVersion, Assigned | None]:
        """The version that a new conversation gets: that of the user's arm where an experiment runs."""
        assigned = self._trials.of(chosen.character.id, tenant, user)
        if assigned is None:
            return chosen, None
        try:
            found = await self._catalog.of(chosen.character.id, assigned.version)
        except (NotFound, TemplateError, StorageUnavailable):
            # Chats are opened while the database is away; who gets no arm is in no report.
            return chosen, None
        return found, assigned

    async def _greetings(
        self, opened: NewConversation, chosen: CharacterVersion
    ) -> tuple[NewGreeting, ...]:
        """What a conversation opens with, before it is there: it may be too large."""
        scene = opened.scene
        cast: Cast = await self._catalog.group(scene.members) if scene.members else chosen
        user = user_of(scene)
        beginning = Beginning(seed=opened.conversation_id.bytes, started=opened.created_at)

        openings = await off_loop(cast.text_chars, lambda: cast.openings(beginning, user=user))
        return tuple(
            NewGreeting(
                message_id=self._new_id(), turn_key=self._new_id(), text=said.text, speaker=speaker
            )
            for speaker, said in openings
        )

    def _members(
        self, ids: Sequence[str], before: Sequence[Member], *, own: str
    ) -> tuple[Member, ...]:
        """The members of a group: who is there already keeps the version, others take `production`."""
        if not 2 <= len(set(ids)) == len(ids) <= MEMBERS_MAX:
            raise InvalidRequest(
                f"members: expected 2 to {MEMBERS_MAX} different characters", param="members"
            )
        if own not in ids:
            raise InvalidRequest(
                f"members: {own!r}, whose conversation this is, is not among them", param="members"
            )
        held = {member.id: member for member in before}
        return tuple(
            held.get(name) or Member(id=name, version=self._current(name).version) for name in ids
        )

    def _current(self, name: str) -> CharacterVersion:
        found = self._catalog.current.by_id.get(name)
        if found is None:
            raise NotFound(f"no character {name!r}", param="members")
        return found

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
        self, *, tenant: str, conversation_id: UUID, reference: str, is_operator: bool = False
    ) -> tuple[str | None, Conversation]:
        """(version before, conversation) once its next turns are made with another version.

        `reference` is a label or the beginning of a version of its character. A version at which no label
        stands is a draft: the operator's alone, but for a conversation that has had it. A turn that runs
        is stored as it is. Raises NotFound and InvalidRequest for what means no version, TemplateError
        for one that cannot be used.
        """
        before = await self._ledger.get(tenant, conversation_id)
        if before.scene.members:
            raise InvalidRequest(
                "the members of a group have versions of their own: name the members anew",
                param="prompt_version",
            )
        chosen = await self._catalog.resolve(before.character, reference)
        if not is_operator and not await self._may_have(before, chosen):
            raise NotFound(
                f"no label of {chosen.character.id} stands at version {reference}",
                param="prompt_version",
            )
        after = await self._ledger.set_prompt_version(tenant, conversation_id, chosen.version)
        return before.prompt_version, after

    async def _may_have(self, conversation: Conversation, chosen: CharacterVersion) -> bool:
        labels = await self._catalog.registry.labels(chosen.character.id)
        past = await self._ledger.past(conversation.tenant, conversation.conversation_id)
        known = {label.version for label in labels} | {*past.versions, conversation.prompt_version}
        return chosen.version in known

    def with_members(
        self, conversation: Conversation, scene: Scene, members: Sequence[str]
    ) -> Scene:
        """The scene with these members and no others; without any it is a conversation with its character
        alone. Raises as `open`."""
        found: tuple[Member, ...] = ()
        if members:
            own = conversation.character or DEFAULT_CHARACTER
            found = self._members(members, conversation.scene.members, own=own)
        return msgspec.structs.replace(scene, members=found)

    async def set_scene(self, conversation: Conversation, scene: Scene) -> tuple[int, Conversation]:
        """Set what is the user's to set; returns how many tokens the next turn computes again where
        anything before the messages is another: all but the character's text. A running turn keeps what
        it began with."""
        key = (conversation.tenant, conversation.conversation_id)
        changed = await self._ledger.set_scene(*key, scene)
        note = conversation.scene.note
        if msgspec.structs.replace(scene, note=note) == conversation.scene:
            return 0, changed
        if conversation.head_id is None:
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
