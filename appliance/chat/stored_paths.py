"""What a turn or a question reads of a stored conversation: it and its path, with the errors of each.

Never: the messages of a prompt (`history`), or a write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from appliance.chat.catalog import Catalog
from appliance.errors import InvalidRequest, NotFound
from appliance.store.ledger import Ledger
from appliance.store.records import Conversation, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPaths:
    """Conversations and their paths. Every method raises StorageUnavailable, and NotFound for what the
    tenant does not have."""

    ledger: Ledger
    catalog: Catalog

    async def conversation(self, tenant: str, conversation_id: UUID) -> Conversation:
        """The conversation with the version that its prompts are made with: one that has none yet takes
        `production`, and its next turn that is stored pins it."""
        conversation = await self.ledger.get(tenant, conversation_id)
        if conversation.prompt_version is not None:
            return conversation
        chosen = self.catalog.current.get(conversation.character)
        return replace(conversation, prompt_version=chosen.version)

    async def to_leaf(
        self, conversation: Conversation, leaf_id: UUID | None
    ) -> tuple[Message, ...]:
        """The path that ends with a message; of None the empty one, before the first message."""
        if leaf_id is None:
            return ()
        return await self._read(conversation, leaf_id, param="parent_id")

    async def to_reply(self, conversation: Conversation, reply_id: UUID) -> tuple[Message, ...]:
        """The path that ends with a reply; raises InvalidRequest for other messages."""
        path = await self._read(conversation, reply_id, param="message_id")
        if not ends_with_reply(path):
            raise InvalidRequest("this message is not a reply of the model", param="message_id")
        return path

    async def _read(
        self, conversation: Conversation, leaf_id: UUID, *, param: str
    ) -> tuple[Message, ...]:
        path = await self.ledger.path(conversation.tenant, conversation.conversation_id, leaf_id)
        if not path:
            raise NotFound(f"no message {leaf_id} in this conversation", param=param)
        return path


def ends_with_reply(path: tuple[Message, ...]) -> bool:
    """Whether the last message answers a prompt: a greeting does not."""
    return len(path) > 1 and path[-1].role == "assistant"
