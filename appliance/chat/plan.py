"""What a turn will do, decided before anything is generated or stored: its place, messages and prompt.

Owns which work a turn can leave out because the one before is known. Never: builds a whole prompt
(`prompt_builder`), generates, stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from uuid import UUID

from appliance.chat.generation import Onward
from appliance.chat.hearing import Hearing
from appliance.chat.history import anchor_of, new_message, spoken, title_of
from appliance.chat.lore import Recall, first_kept
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.params import ChatLimits
from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.prompting import check_message
from appliance.chat.scene import user_of
from appliance.chat.speakers import last_speaker, led, speaker_for
from appliance.chat.stored_paths import StoredPaths
from appliance.chat.tips import KnownTurn, Tips
from appliance.chat.turn_plan import Plan, RepeatedTurn
from appliance.errors import InvalidRequest
from appliance.prompt.cast import Cast
from appliance.prompt.chat_format.contents import with_ids
from appliance.prompt.continuation import continued
from appliance.prompt.fit import Fitted
from appliance.prompt.messages import Prompt
from appliance.store.records import Conversation, Message, NewMessage, StoredTurn
from appliance.store.text import storable
from appliance.wire.frames import Node


class Place(Enum):
    """Where a message goes when no parent is named."""

    HEAD = "head"


def conversation_key(tenant: str, conversation_id: UUID) -> bytes:
    """What engines know a conversation by: it is routed and pinned under this name."""
    return f"{tenant}/{conversation_id}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """Where a turn begins: what is known of the turn before, else the path."""

    parent_id: UUID | None
    known: KnownTurn | None
    path: tuple[Message, ...]

    @property
    def speaker(self) -> str | None:
        """The member of a group who spoke last."""
        return last_speaker(self.path) if self.known is None else self.known.speaker


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A prompt and what came of the path: how many of its messages are cut, where its lore stands."""

    fitted: Fitted
    node: Node | None
    anchor_id: UUID | None
    recall: Recall


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans turns, with what `tips` knows of the conversation where it goes on. Else holds no state."""

    paths: StoredPaths
    builder: PromptBuilder
    limits: ChatLimits
    tips: Tips
    new_id: Callable[[], UUID]

    async def send(
        self,
        *,
        tenant: str,
        conversation_id: UUID,
        text: str,
        parent: UUID | Place | None,
        turn_key: UUID | None,
        speaker: str | None = None,
    ) -> Plan | RepeatedTurn:
        """The plan of a new message, or the turn that is already stored under its key."""
        check_message(text, self.limits)
        text = storable(text)
        conversation = await self.paths.conversation(tenant, conversation_id)
        standing = await self._standing(conversation, parent)
        if turn_key is not None:
            places = _places(standing, is_head=isinstance(parent, Place))
            for place in places:
                stored = await self.paths.ledger.turn(tenant, conversation_id, place, turn_key)
                if stored is not None:
                    return await self._repeated(conversation, stored)
        cast = await self.builder.catalog.cast(conversation)
        speaker = speaker_for(cast, text, asked=speaker, before=standing.speaker)
        keeper = await self.builder.keeper(conversation, standing.path)
        user, asked = await self._answering(conversation, standing, keeper, text, cast, speaker)
        return Plan(
            tenant=tenant,
            conversation_id=conversation_id,
            turn_key=turn_key or self.new_id(),
            parent_id=standing.parent_id,
            place_id=standing.parent_id,
            user=user,
            assistant_id=self.new_id(),
            fitted=asked.fitted,
            onward=self._onward(conversation, standing.parent_id, user, asked.node, speaker),
            anchor_id=asked.anchor_id,
            title=None if conversation.title else title_of(text),
            lore=keeper.lore,
            recall=asked.recall,
            prompt_version=_version(conversation),
            scene=conversation.scene,
            speaker=speaker,
            trial=conversation.trial,
            sampling=cast.sampling,
        )

    async def regenerate(
        self,
        *,
        tenant: str,
        conversation_id: UUID,
        message_id: UUID | None,
        speaker: str | None = None,
    ) -> Plan:
        """The plan of another reply beside a stored one (the head when None): of the same speaker, unless
        another is named."""
        conversation = await self.paths.conversation(tenant, conversation_id)
        target = message_id or conversation.head_id
        if target is None:
            raise InvalidRequest("the conversation has no reply yet", param="message_id")
        *said, reply = await self.paths.to_reply(conversation, target)
        path, cast = tuple(said), await self.builder.catalog.cast(conversation)
        speaker = speaker_for(
            cast, path[-1].text, asked=speaker, before=last_speaker(path), own=reply.speaker
        )
        fitted = (await self.builder.build(conversation, path, speaker=speaker)).fitted
        keeper = await self.builder.keeper(conversation, path)
        return Plan(
            tenant=tenant,
            conversation_id=conversation_id,
            turn_key=self.new_id(),
            parent_id=path[-1].message_id,
            place_id=path[-1].parent_id,
            user=None,
            assistant_id=self.new_id(),
            fitted=fitted,
            onward=self._onward(conversation, path[-1].message_id, None, None, speaker),
            anchor_id=anchor_of(path, fitted.messages_dropped),
            title=None,
            lore=keeper.lore,
            recall=keeper.recalled(path, fitted.messages_dropped),
            prompt_version=_version(conversation),
            scene=conversation.scene,
            speaker=speaker,
            trial=conversation.trial,
            sampling=cast.sampling,
        )

    async def _standing(self, conversation: Conversation, parent: UUID | Place | None) -> _Standing:
        parent_id = conversation.head_id if isinstance(parent, Place) else parent
        key = (conversation.tenant, conversation.conversation_id)
        # A head was not deleted; of another parent, only the path tells.
        at_head = parent_id is not None and parent_id == conversation.head_id
        known = self.tips.get(key, parent_id) if at_head else None
        if known is not None and not known.is_of(conversation):
            known = None  # its front is that of another version or persona
        path = await self.paths.to_leaf(conversation, parent_id if known is None else None)
        return _Standing(parent_id=parent_id, known=known, path=path)

    async def _repeated(self, conversation: Conversation, stored: StoredTurn) -> RepeatedTurn:
        """A turn that is stored already; where its prompt began later, the path says how much was left
        out."""
        reply, dropped = stored.assistant, 0
        if reply.anchor_id is not None:
            path = spoken(await self.paths.to_leaf(conversation, reply.message_id))
            dropped = first_kept(path, reply.anchor_id)
        return RepeatedTurn(stored=stored, messages_dropped=dropped)

    async def _answering(
        self,
        conversation: Conversation,
        standing: _Standing,
        keeper: Lorekeeper,
        text: str,
        cast: Cast,
        speaker: str | None,
    ) -> tuple[NewMessage, _Asked]:
        """The new message with the lore that it calls up, and its prompt: gone on to where the turn
        before is known, else built from the whole path."""
        known, path = standing.known, standing.path
        before = keeper.recalled(path) if known is None else known.recall
        heard = await self._hearing.hear(conversation, keeper, before, text)
        if known is not None:
            fitted = self._continued(conversation, known, heard.user, cast, speaker)
            if fitted is not None:
                # It drops what the one before it dropped: the anchor stays.
                asked = _Asked(
                    fitted=fitted, node=known.node, anchor_id=known.anchor_id, recall=heard.recall
                )
                return heard.user, asked
            path = await self.paths.to_leaf(conversation, standing.parent_id)
        made = await self._hearing.answerable(
            conversation, path, keeper, before, heard, speaker=speaker
        )
        return made.heard.user, _Asked(
            fitted=made.fitted,
            node=None,
            anchor_id=anchor_of(path, made.fitted.messages_dropped),
            recall=made.heard.recall,
        )

    @property
    def _hearing(self) -> Hearing:
        return Hearing(builder=self.builder, new_id=self.new_id)

    def _continued(
        self,
        conversation: Conversation,
        known: KnownTurn,
        user: NewMessage,
        cast: Cast,
        speaker: str | None,
    ) -> Fitted | None:
        # What a member has said last is in no prompt that goes on.
        if cast.says_last(speaker):
            return None
        model = self.builder.model
        new = led(user, cast, name=user_of(conversation.scene), speaker=speaker)
        said = new_message(new, conversation.tenant, model)
        *leads, message = (with_ids(model.tokenizer, one) for one in said)
        return continued(
            model.chat_format, known.tip, message, self.builder.window(cast), leads=leads
        )

    def _onward(
        self,
        conversation: Conversation,
        leaf_id: UUID | None,
        user: NewMessage | None,
        node: Node | None,
        speaker: str | None,
    ) -> Onward:
        return Onward(
            conversation=conversation_key(conversation.tenant, conversation.conversation_id),
            node=node,
            whole=partial(self._whole, conversation, leaf_id, user, speaker),
        )

    async def _whole(
        self,
        conversation: Conversation,
        leaf_id: UUID | None,
        user: NewMessage | None,
        speaker: str | None,
    ) -> Prompt:
        path = await self.paths.to_leaf(conversation, leaf_id)
        return (await self.builder.build(conversation, path, user, speaker=speaker)).prompt


def _places(standing: _Standing, *, is_head: bool) -> list[UUID | None]:
    """Where a turn of a given key may be stored: below the parent, and below that of the head's turn, as
    the head may be the reply of this very turn."""
    places = [standing.parent_id]
    if is_head and standing.known is not None:
        places.append(standing.known.place_id)
    elif is_head and len(standing.path) >= 2:
        places.append(standing.path[-2].parent_id)
    return places


def _version(conversation: Conversation) -> str:
    assert conversation.prompt_version is not None, "`StoredPaths.conversation` gives one"
    return conversation.prompt_version
