"""Stored conversations apart from their turns: opened, listed, shown, renamed, deleted.

What would pull the ground from under a running turn stops it first and waits until it is stored.
Never: generates, or runs a statement of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    ConversationChange,
    Cursor,
    Member,
    Message,
    NewConversation,
    NewGreeting,
    Scene,
)
from appliance.tokens import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A conversation after a change, and how many tokens of its prompt its next turn computes again for
    another scene."""

    conversation: Conversation
    recompute_tokens: int = 0


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

    async def change(
        self,
        conversation: Conversation,
        *,
        head_id: UUID | None = None,
        title: str | None = None,
        scene: Scene | None = None,
        reference: str | None = None,
        is_operator: bool = False,
    ) -> Changed:
        """Change what is given of a conversation as it was read: all of it or, where any is refused,
        nothing. A running turn keeps what it began with, and shows its own leaf again when it is stored.

        `head_id` is another leaf to show. `reference` is a label or the beginning of a version of its
        character, for its next turns. A version at which no label stands is a draft: the operator's
        alone, but for a conversation that has had it. Raises InvalidRequest, NotFound for what means no
        message or version, TemplateError for a version that cannot be used.
        """
        if scene == conversation.scene:
            scene = None
        version = None
        if reference is not None:
            version = await self._version(conversation, scene, reference, is_operator=is_operator)
        change = ConversationChange(
            head_id=head_id, title=title, scene=scene, prompt_version=version
        )
        if change == ConversationChange():
            return Changed(conversation=conversation)
        tokens = 0
        if scene is not None:
            tokens = await self._recomputed(conversation, scene, head_id or conversation.head_id)
        changed = await self._ledger.change(
            conversation.tenant, conversation.conversation_id, change
        )
        return Changed(conversation=changed, recompute_tokens=tokens)

    async def _version(
        self, conversation: Conversation, scene: Scene | None, reference: str, *, is_operator: bool
    ) -> str:
        """The version that is meant, if the conversation may have it."""
        if (scene or conversation.scene).members:
            raise InvalidRequest(
                "the members of a group have versions of their own: name the members anew",
                param="prompt_version",
            )
        chosen = await self._catalog.resolve(conversation.character, reference)
        if not is_operator and not await self._may_have(conversation, chosen):
            raise NotFound(
                f"no label of {chosen.character.id} stands at version {reference}",
                param="prompt_version",
            )
        return chosen.version

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

    async def _recomputed(
        self, conversation: Conversation, scene: Scene, head_id: UUID | None
    ) -> int:
        """How many tokens the next turn computes again at most with another scene: where anything before
        the messages is another, all of the newest prompt and its reply, though the character's text may
        stay cached."""
        note = conversation.scene.note
        if head_id is None or msgspec.structs.replace(scene, note=note) == conversation.scene:
            return 0
        key = (conversation.tenant, conversation.conversation_id)
        head = await self._ledger.message(*key, head_id)
        return (head.prompt_tokens or 0) + count(head.token_ids or b"")

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
