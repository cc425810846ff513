"""What a turn will do, decided before anything is generated or stored: its place, messages and prompt.

Owns the reading of paths and the building of conversation prompts. Never: generates, stores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import product
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
from appliance.chat.lore import Lorekeeper, Recall, recalled
from appliance.chat.lore_placement import Placed
from appliance.chat.params import ChatLimits
from appliance.chat.prompting import check_message, context_tokens, off_loop
from appliance.chat.scene import macros_of, rendered_for, shared_greetings
from appliance.chat.tips import KnownTurn, Tips
from appliance.chat.turn_plan import Plan
from appliance.errors import InvalidRequest, NotFound
from appliance.prompt.contents import encode_content, with_ids
from appliance.prompt.continuation import continued
from appliance.prompt.fit import Fitted, fit, fronts
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
        path = () if known is not None else await self._path(conversation, parent_id)
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
        keeper = await self._keeper(conversation)
        recall = keeper.recalled(path, conversation.anchor_id) if known is None else known.recall
        user, recall = await self._heard(conversation, keeper, recall, text)
        fitted = None if known is None else self._continued(conversation, known, user)
        node = None if fitted is None or known is None else known.node
        front, kept = None, 0 if known is None else known.dropped
        if fitted is None:
            if known is not None:
                path = await self._path(conversation, parent_id)
            asked = await self._asked(conversation, path, user)
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
            onward=self._onward(conversation, parent_id, user, node),
            # A prompt that goes on drops what the one before it dropped.
            anchor_id=anchor_of(path, kept),
            title=None if conversation.title else title_of(text),
            front=front,
            dropped=kept,
            lore=keeper.lore,
            recall=recall,
            prompt_version=_version(conversation),
            scene=conversation.scene,
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
        recall, lore = await off_loop(len(text), partial(keeper.heard, recall, text))
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
        self, *, tenant: str, conversation_id: UUID, message_id: UUID | None
    ) -> Plan:
        """The plan of another reply beside a stored one (the head when None)."""
        conversation = await self._conversation(tenant, conversation_id)
        target = message_id or conversation.head_id
        if target is None:
            raise InvalidRequest("the conversation has no reply yet", param="message_id")
        path = await self._path_to_prompt(conversation, target)
        asked = await self._asked(conversation, path, None)
        fitted = await self._fitted(asked)
        lore, kept = (await self._keeper(conversation)).lore, self._kept(path, fitted)
        return Plan(
            tenant=tenant,
            conversation_id=conversation_id,
            turn_key=self.new_id(),
            parent_id=path[-1].message_id,
            place_id=path[-1].parent_id,
            user=None,
            assistant_id=self.new_id(),
            fitted=fitted,
            onward=self._onward(conversation, path[-1].message_id, None, None),
            anchor_id=anchor_of(path, kept),
            title=None,
            front=asked.record,
            dropped=kept,
            lore=lore,
            recall=recalled(spoken(path), lore, kept),
            prompt_version=_version(conversation),
            scene=conversation.scene,
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
        path = await self._path_to_prompt(conversation, message_id)
        asked = await self._asked(conversation, path, None)
        return path, await self._fitted(asked), asked.record

    async def fitted(self, conversation: Conversation, path: tuple[Message, ...]) -> Fitted:
        """The prompt that the last message of a path is answered with, as the version that the
        conversation holds makes it."""
        return await self._fit(conversation, path, None)

    async def left_by(
        self, *, tenant: str, conversation_id: UUID
    ) -> tuple[Conversation, Prompt, tuple[Message, ...]]:
        """The path that is shown, and the prompt of the reply it ends with, computed again.

        Where the head is no reply to a prompt, the prompt ends with the head. Raises NotFound, and
        InvalidRequest for a conversation without messages.
        """
        conversation = await self._conversation(tenant, conversation_id)
        path = await self._path(conversation, conversation.head_id)
        if not path:
            raise InvalidRequest("the conversation has no messages yet", param="conversation")
        asked = path[:-1] if len(path) > 1 and path[-1].role == "assistant" else path
        return conversation, (await self._fit(conversation, asked, None)).prompt, path

    async def window_starts(self, *, tenant: str, conversation_id: UUID) -> tuple[Prompt, ...]:
        """Prompts of which one begins every prompt this conversation can have had: each with the
        operator's text and one message of a user, which is the last of its parts but the header."""
        conversation = await self._conversation(tenant, conversation_id)
        messages = await self.ledger.messages(tenant, conversation_id)
        by_id = {message.message_id: message for message in messages}
        paths: list[tuple[Message, ...]] = []
        for message in messages:
            if message.role != "user":
                continue
            paths.append((message,))
            greeting = by_id.get(message.parent_id) if message.parent_id is not None else None
            if greeting is not None and greeting.parent_id is None:
                paths.append((greeting, message))
        starts = []
        left = await self.ledger.left_prompt_versions(tenant, conversation_id)
        for version, path in product({conversation.prompt_version, *left}, paths):
            held = replace(conversation, prompt_version=version)
            asked = await self._asked(held, path, None)
            # A cut may have taken parts out of the front.
            for front in fronts(asked.around.front):
                around = replace(asked.around, front=front)
                starts.append((await self._fitted(replace(asked, around=around))).prompt)
        return tuple(starts)

    async def _keeper(self, conversation: Conversation) -> Lorekeeper:
        """Who decides about the lore of a conversation."""
        chosen = await self.catalog.of(conversation.character, conversation.prompt_version)
        return Lorekeeper(
            namespace=tenant_namespace(conversation.tenant),
            lore=chosen.lore,
            tokenizer=self.model.tokenizer,
            note=conversation.scene.note,
            macros=macros_of(conversation, chosen),
            room_tokens=self.window().room,
        )

    async def _conversation(self, tenant: str, conversation_id: UUID) -> Conversation:
        """The conversation with the version that its prompts are made with: one that has none yet takes
        `production`, and its next turn that is stored pins it."""
        conversation = await self.ledger.get(tenant, conversation_id)
        if conversation.prompt_version is not None:
            return conversation
        chosen = self.catalog.current.get(conversation.character)
        return replace(conversation, prompt_version=chosen.version)

    async def _path(self, conversation: Conversation, leaf_id: UUID | None) -> tuple[Message, ...]:
        if leaf_id is None:
            return ()
        path = await self.ledger.path(conversation.tenant, conversation.conversation_id, leaf_id)
        if not path:
            raise NotFound(f"no message {leaf_id} in this conversation", param="parent_id")
        return path

    async def _path_to_prompt(
        self, conversation: Conversation, reply_id: UUID
    ) -> tuple[Message, ...]:
        """The path that ends just before a reply; raises InvalidRequest for other messages."""
        path = await self.ledger.path(conversation.tenant, conversation.conversation_id, reply_id)
        if not path:
            raise NotFound(f"no message {reply_id} in this conversation", param="message_id")
        if path[-1].role != "assistant" or len(path) == 1:
            raise InvalidRequest("this message is not a reply of the model", param="message_id")
        return path[:-1]

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
        node: Node | None,
    ) -> Onward:
        return Onward(
            conversation=conversation_key(conversation.tenant, conversation.conversation_id),
            node=node,
            whole=partial(self._whole, conversation, leaf_id, user),
        )

    async def _whole(
        self, conversation: Conversation, leaf_id: UUID | None, user: NewMessage | None
    ) -> Prompt:
        path = await self._path(conversation, leaf_id)
        return (await self._fit(conversation, path, user)).prompt

    def window(self) -> Window:
        """The room for prompts; raises EngineUnavailable before the context's size is known."""
        return window(
            limit=context_tokens(self.engine),
            reserve=self.limits.reply_reserve_tokens,
            step=self.limits.truncation_step_tokens,
        )

    async def _fit(
        self, conversation: Conversation, path: tuple[Message, ...], user: NewMessage | None
    ) -> Fitted:
        return await self._fitted(await self._asked(conversation, path, user))

    async def _asked(
        self, conversation: Conversation, path: tuple[Message, ...], user: NewMessage | None
    ) -> _Asked:
        chosen = await self.catalog.of(conversation.character, conversation.prompt_version)
        history = prompt_messages(
            spoken(path),
            tenant=conversation.tenant,
            greetings=await shared_greetings(conversation, chosen, path),
            model=self.model,
        )
        if user is not None:
            history += new_message(user, conversation.tenant, self.model)
        rendered = await rendered_for(conversation, chosen)
        namespace = tenant_namespace(conversation.tenant)
        around = Placed(
            front=[part.message(namespace) for part in rendered.before],
            history=history,
            after=[part.message(namespace) for part in rendered.after],
        )
        is_anew = chosen.lore.placement is Placement.AS_WRITTEN
        if is_anew:
            keeper = await self._keeper(conversation)
            around = keeper.as_written(spoken(path), user, around, namespace)
        return _Asked(
            around=around,
            is_anew=is_anew,
            history_priority=rendered.history_priority,
            record=front_of(
                rendered,
                version=chosen.template.version,
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
