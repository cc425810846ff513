"""What a turn will do, decided before anything is generated or stored: its place, messages and prompt.

Owns the reading of paths and the building of conversation prompts. Never: generates, stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from uuid import UUID

from appliance.chat.catalog import Catalog
from appliance.chat.fronts import Front, front_of
from appliance.chat.generation import Onward
from appliance.chat.history import (
    anchor_of,
    kept_from,
    new_message,
    prompt_messages,
    spoken,
    title_of,
)
from appliance.chat.lore import Recall
from appliance.chat.lore_placement import Placed
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.params import ChatLimits
from appliance.chat.prompting import check_message, context_tokens, off_loop
from appliance.chat.scene import (
    greeting_index,
    macros_of,
    rendered_for,
    shared_greetings,
    user_of,
)
from appliance.chat.speakers import Cast, last_speaker, led, speaker_for, staged
from appliance.chat.tips import KnownTurn, Tips
from appliance.chat.turn_plan import Plan
from appliance.errors import InvalidRequest, NotFound
from appliance.prompt.contents import encode_content, with_ids
from appliance.prompt.continuation import continued
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.groups import Group
from appliance.prompt.lore.books import Placement
from appliance.prompt.messages import Prompt
from appliance.prompt.model_text import ModelText
from appliance.prompt.namespace import tenant_namespace
from appliance.prompt.truncate import Window, window
from appliance.store.ledger import Ledger
from appliance.store.records import Conversation, Message, NewMessage, StoredTurn
from appliance.store.text import storable
from appliance.wire.access import EngineAccess
from appliance.wire.frames import Node

log = logging.getLogger("appliance.chat")


class Place(Enum):
    """Where a message goes when no parent is named."""

    HEAD = "head"


def conversation_key(tenant: str, conversation_id: UUID) -> bytes:
    """What engines know a conversation by: it is routed and pinned under this name."""
    return f"{tenant}/{conversation_id}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a prompt is cut from. `is_anew`: the next prompt may have other parts around its messages."""

    around: Placed
    history_priority: int
    record: Front
    is_anew: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans turns, with what `tips` knows of the conversation where it goes on. Else holds no state."""

    ledger: Ledger
    engine: EngineAccess
    model: ModelText
    catalog: Catalog
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
    ) -> Plan | StoredTurn:
        """The plan of a new message, or the turn that is already stored under its key."""
        check_message(text, self.limits)
        text = storable(text)
        conversation = await self._conversation(tenant, conversation_id)
        parent_id = conversation.head_id if isinstance(parent, Place) else parent
        # A head was not deleted; of another parent, only the path tells.
        at_head = parent_id is not None and parent_id == conversation.head_id
        known = self.tips.get((tenant, conversation_id), parent_id) if at_head else None
        if known is not None and not known.is_of(conversation):
            known = None  # its front is that of another version or persona
        cast = await self.catalog.cast(conversation)
        path = () if known is not None else await self._path(conversation, cast, parent_id)
        if turn_key is not None:
            places = [parent_id]
            if isinstance(parent, Place) and known is not None:
                places.append(known.place_id)  # the head may be the reply of this very turn
            elif isinstance(parent, Place) and len(path) >= 2:
                places.append(path[-2].parent_id)
            for place in places:
                stored = await self.ledger.turn(tenant, conversation_id, place, turn_key)
                if stored is not None:
                    return replace(stored, prompt_version=conversation.prompt_version)
        before = last_speaker(path) if known is None else known.speaker
        speaker = speaker_for(cast, text, asked=speaker, before=before)
        keeper = await self._keeper(conversation, cast, path)
        recall = keeper.recalled(path) if known is None else known.recall
        user, recall = await self._heard(conversation, keeper, recall, text)
        said = led(user, cast, name=user_of(conversation.scene), speaker=speaker)
        fitted = None
        # What stands behind the newest message is no part of a prompt that goes on.
        if known is not None and not (isinstance(cast, Group) and cast.says_last(speaker)):
            fitted = self._continued(conversation, known, said)
        node = None if fitted is None or known is None else known.node
        front, kept = None, 0 if known is None else known.dropped
        if fitted is None:
            if known is not None:
                path = await self._path(conversation, cast, parent_id)
            asked = await self._asked(conversation, cast, path, said, speaker)
            fitted, front = await self._fitted(asked), asked.record
            kept = self._kept(path, fitted)
            recall = recall.standing(spoken(path)[kept:], user.lore, is_full=kept > 0)
        return Plan(
            tenant=tenant,
            conversation_id=conversation_id,
            turn_key=turn_key or self.new_id(),
            parent_id=parent_id,
            place_id=parent_id,
            user=user,
            assistant_id=self.new_id(),
            fitted=fitted,
            onward=self._onward(conversation, parent_id, said, speaker, node),
            # A prompt that goes on drops what the one before it dropped.
            anchor_id=anchor_of(path, kept),
            title=None if conversation.title else title_of(text),
            front=front,
            dropped=kept,
            lore=keeper.lore,
            recall=recall,
            prompt_version=_version(conversation),
            scene=conversation.scene,
            speaker=speaker,
        )

    async def _heard(
        self, conversation: Conversation, keeper: Lorekeeper, recall: Recall, text: str
    ) -> tuple[NewMessage, Recall]:
        """The new message with the lore that it calls up, and what its path has come to with it."""
        tokenizer = self.model.tokenizer
        namespace = tenant_namespace(conversation.tenant)
        token_ids = await off_loop(
            len(text), lambda: encode_content(tokenizer, text, namespace, param="text")
        )
        # A book's constants are measured too, which for a large one takes as long as a long text.
        work = len(text) + keeper.lore.standing_chars
        recall, lore = await off_loop(work, partial(keeper.heard, recall, text))
        user = NewMessage(
            message_id=self.new_id(),
            role="user",
            text=text,
            token_ids=token_ids,
            tokenizer=tokenizer.fingerprint,
            lore=lore,
        )
        return user, recall

    async def regenerate(
        self,
        *,
        tenant: str,
        conversation_id: UUID,
        message_id: UUID | None,
        speaker: str | None = None,
    ) -> Plan:
        """The plan of another reply beside a stored one (the head when None), of the same speaker unless
        another is named."""
        conversation = await self._conversation(tenant, conversation_id)
        target = message_id or conversation.head_id
        if target is None:
            raise InvalidRequest("the conversation has no reply yet", param="message_id")
        cast = await self.catalog.cast(conversation)
        path, speaker = await self._path_to_prompt(conversation, cast, target, speaker)
        asked = await self._asked(conversation, cast, path, None, speaker)
        fitted = await self._fitted(asked)
        keeper, kept = await self._keeper(conversation, cast, path), self._kept(path, fitted)
        return Plan(
            tenant=tenant,
            conversation_id=conversation_id,
            turn_key=self.new_id(),
            parent_id=path[-1].message_id,
            place_id=path[-1].parent_id,
            user=None,
            assistant_id=self.new_id(),
            fitted=fitted,
            onward=self._onward(conversation, path[-1].message_id, None, speaker, None),
            anchor_id=anchor_of(path, kept),
            title=None,
            front=asked.record,
            dropped=kept,
            lore=keeper.lore,
            recall=keeper.recalled(path, kept),
            prompt_version=_version(conversation),
            scene=conversation.scene,
            speaker=speaker,
        )

    async def prompt_of(self, *, tenant: str, conversation_id: UUID, message_id: UUID) -> Prompt:
        """The prompt of a stored reply, computed again from its path."""
        _, fitted, _ = await self.again(
            tenant=tenant, conversation_id=conversation_id, message_id=message_id
        )
        return fitted.prompt

    async def again(
        self, *, tenant: str, conversation_id: UUID, message_id: UUID
    ) -> tuple[tuple[Message, ...], Fitted, Front]:
        """The path to the prompt of a stored reply, that prompt computed again, and what stands around
        the history now. Raises as `prompt_of`."""
        conversation = await self._conversation(tenant, conversation_id)
        cast = await self.catalog.cast(conversation)
        path, speaker = await self._path_to_prompt(conversation, cast, message_id, None)
        asked = await self._asked(conversation, cast, path, None, speaker)
        return path, await self._fitted(asked), asked.record

    async def fitted(self, conversation: Conversation, path: tuple[Message, ...]) -> Fitted:
        """The prompt that the last message of a path is answered with, as the version that the
        conversation holds makes it."""
        cast = await self.catalog.cast(conversation)
        said = staged(path, cast, name=user_of(conversation.scene), speaker=None)
        return await self._fit(conversation, cast, said, None, None)

    async def left_by(
        self, *, tenant: str, conversation_id: UUID
    ) -> tuple[Conversation, Prompt, tuple[Message, ...]]:
        """The path that is shown, and the prompt of the reply it ends with, computed again.

        Where the head is no reply to a prompt, the prompt ends with the head. Raises NotFound, and
        InvalidRequest for a conversation without messages.
        """
        conversation = await self._conversation(tenant, conversation_id)
        cast = await self.catalog.cast(conversation)
        path = await self._path(conversation, cast, conversation.head_id)
        if not path:
            raise InvalidRequest("the conversation has no messages yet", param="conversation")
        is_answered = len(path) > 1 and path[-1].role == "assistant"
        asked, speaker = (path[:-1], path[-1].speaker) if is_answered else (path, None)
        fitted = await self._fit(conversation, cast, asked, None, speaker)
        return conversation, fitted.prompt, path

    async def _keeper(
        self, conversation: Conversation, cast: Cast, path: tuple[Message, ...]
    ) -> Lorekeeper:
        """Who decides about the lore of a conversation."""
        asks = cast.lore.asks_greeting
        return Lorekeeper(
            namespace=tenant_namespace(conversation.tenant),
            lore=cast.lore,
            tokenizer=self.model.tokenizer,
            note=conversation.scene.note,
            macros=macros_of(conversation, cast),
            room_tokens=self.window().room,
            owners=cast.owners if isinstance(cast, Group) else {},
            greeting=await greeting_index(conversation, cast, path) if asks else None,
            anchor_id=conversation.anchor_id,
        )

    async def _conversation(self, tenant: str, conversation_id: UUID) -> Conversation:
        """The conversation with the version that its prompts are made with: one that has none yet takes
        `production`, and its next turn that is stored pins it."""
        conversation = await self.ledger.get(tenant, conversation_id)
        if conversation.prompt_version is not None:
            return conversation
        chosen = self.catalog.current.get(conversation.character)
        return replace(conversation, prompt_version=chosen.version)

    async def _path(
        self,
        conversation: Conversation,
        cast: Cast,
        leaf_id: UUID | None,
        speaker: str | None = None,
    ) -> tuple[Message, ...]:
        """The path to a message, as prompts have it for a reply of `speaker`."""
        if leaf_id is None:
            return ()
        path = await self.ledger.path(conversation.tenant, conversation.conversation_id, leaf_id)
        if not path:
            raise NotFound(f"no message {leaf_id} in this conversation", param="parent_id")
        return staged(path, cast, name=user_of(conversation.scene), speaker=speaker)

    async def _path_to_prompt(
        self, conversation: Conversation, cast: Cast, reply_id: UUID, speaker: str | None
    ) -> tuple[tuple[Message, ...], str | None]:
        """The path that ends just before a reply, and who speaks: whose the reply is unless another is
        named. Raises InvalidRequest for other messages."""
        path = await self.ledger.path(conversation.tenant, conversation.conversation_id, reply_id)
        if not path:
            raise NotFound(f"no message {reply_id} in this conversation", param="message_id")
        if path[-1].role != "assistant" or len(path) == 1:
            raise InvalidRequest("this message is not a reply of the model", param="message_id")
        *said, reply = path
        speaker = speaker_for(
            cast, said[-1].text, asked=speaker, before=last_speaker(said), own=reply.speaker
        )
        return staged(said, cast, name=user_of(conversation.scene), speaker=speaker), speaker

    def _continued(
        self, conversation: Conversation, known: KnownTurn, user: NewMessage
    ) -> Fitted | None:
        said = new_message(user, conversation.tenant, self.model)
        *leads, message = (with_ids(self.model.tokenizer, one) for one in said)
        return continued(self.model.chat_format, known.tip, message, self.window(), leads=leads)

    def _kept(self, path: tuple[Message, ...], fitted: Fitted) -> int:
        return kept_from(
            spoken(path), fitted.dropped, takes_leads=self.model.chat_format.takes_leads
        )

    def _onward(
        self,
        conversation: Conversation,
        leaf_id: UUID | None,
        user: NewMessage | None,
        speaker: str | None,
        node: Node | None,
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
        cast = await self.catalog.cast(conversation)
        path = await self._path(conversation, cast, leaf_id, speaker)
        return (await self._fit(conversation, cast, path, user, speaker)).prompt

    def window(self) -> Window:
        """The room for prompts; raises EngineUnavailable before the context's size is known."""
        return window(
            limit=context_tokens(self.engine),
            reserve=self.limits.reply_reserve_tokens,
            step=self.limits.truncation_step_tokens,
        )

    async def _fit(
        self,
        conversation: Conversation,
        cast: Cast,
        path: tuple[Message, ...],
        user: NewMessage | None,
        speaker: str | None,
    ) -> Fitted:
        return await self._fitted(await self._asked(conversation, cast, path, user, speaker))

    async def _asked(
        self,
        conversation: Conversation,
        cast: Cast,
        path: tuple[Message, ...],
        user: NewMessage | None,
        speaker: str | None,
    ) -> _Asked:
        history = prompt_messages(
            spoken(path),
            tenant=conversation.tenant,
            greetings=await shared_greetings(conversation, cast, path),
            model=self.model,
        )
        if user is not None:
            history += new_message(user, conversation.tenant, self.model)
        rendered = await rendered_for(conversation, cast, speaker=speaker)
        namespace = tenant_namespace(conversation.tenant)
        around = Placed(
            front=[part.message(namespace) for part in rendered.before],
            history=history,
            after=[part.message(namespace) for part in rendered.after],
        )
        is_anew = cast.lore.placement is Placement.AS_WRITTEN
        if is_anew:
            keeper = await self._keeper(conversation, cast, path)
            around = await off_loop(
                cast.lore.standing_chars,
                partial(keeper.as_written, spoken(path), user, around, namespace),
            )
        return _Asked(
            around=around,
            is_anew=is_anew,
            history_priority=rendered.history_priority,
            record=front_of(
                rendered,
                version=cast.made_of,
                tokenizer=self.model.tokenizer.fingerprint,
            ),
        )

    async def _fitted(self, asked: _Asked) -> Fitted:
        space, around = self.window(), asked.around
        chars = sum(len(said.content) for said in around.history if said.token_ids is None)
        fitted = await off_loop(
            chars,
            lambda: fit(
                self.model.chat_format,
                around.front,
                around.history,
                space,
                after=around.after,
                history_priority=asked.history_priority,
            ),
        )
        return replace(fitted, is_plain=False) if asked.is_anew else fitted


def _version(conversation: Conversation) -> str:
    assert conversation.prompt_version is not None, "`_conversation` gives one"
    return conversation.prompt_version
