"""What a reader or an operator asks about the prompt of a stored reply. Never: what is cached now."""

from __future__ import annotations

from uuid import UUID

from appliance.chat.fronts import Fronts
from appliance.chat.history import foreign
from appliance.chat.plan import Planner
from appliance.chat.prompt_explanation import Again, PromptExplanation, explained
from appliance.errors import InvalidRequest
from appliance.prompt.model_text import ModelText
from appliance.store.records import Message


class PromptView:
    """Prompts of stored replies, computed again. Raises NotFound for what the tenant does not have."""

    def __init__(self, *, planner: Planner, fronts: Fronts, model: ModelText) -> None:
        self._planner = planner
        self._fronts = fronts
        self._model = model

    async def explain(
        self, *, tenant: str, conversation_id: UUID, message_id: UUID | None
    ) -> PromptExplanation:
        """The prompt of a reply (None: of the latest that is shown), against the turn stored before it.

        Work for the whole conversation. Raises InvalidRequest for a message that is no reply to a prompt,
        EngineUnavailable before the context's size is known.
        """
        ledger = self._planner.ledger
        messages = await ledger.messages(tenant, conversation_id)
        if message_id is None:
            conversation = await ledger.get(tenant, conversation_id)
            message_id = conversation.head_id
            if message_id is None:
                raise InvalidRequest("the conversation has no reply yet", param="message_id")
        now = await self._again(tenant, conversation_id, message_id)
        earlier = _before(messages, now.reply)
        before = None
        if earlier is not None:
            before = await self._again(tenant, conversation_id, earlier.message_id)
        return explained(
            conversation_id,
            now,
            before,
            closing=self._model.chat_format.closing,
            decode=self._model.tokenizer.decode,
        )

    async def _again(self, tenant: str, conversation_id: UUID, message_id: UUID) -> Again:
        path, fitted, front = await self._planner.again(
            tenant=tenant, conversation_id=conversation_id, message_id=message_id
        )
        reply = await self._planner.ledger.message(tenant, conversation_id, message_id)
        return Again(
            path=(*path, reply),
            fitted=fitted,
            front=front,
            recorded=self._fronts.get((tenant, conversation_id), message_id),
            foreign=foreign(path, self._model.tokenizer.fingerprint),
            window=self._planner.window(),
        )


def _before(messages: tuple[Message, ...], reply: Message) -> Message | None:
    """The reply stored last before this one, on whatever branch."""
    ids = [message.message_id for message in messages]
    if reply.message_id not in ids:
        return None
    earlier = [
        message
        for message in messages[: ids.index(reply.message_id)]
        if message.prompt_tokens is not None
    ]
    return max(earlier, key=lambda message: message.created_at, default=None)
