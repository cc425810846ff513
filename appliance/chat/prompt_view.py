"""What a reader or an operator asks about the prompt of a stored reply. Never: what is cached now."""

from __future__ import annotations

from uuid import UUID

from appliance.chat.prompt_explanation import PromptExplanation, explained
from appliance.chat.reply_prompts import ReplyPrompts
from appliance.errors import InvalidRequest
from appliance.prompt.messages import Prompt
from appliance.store.records import Message


class PromptView:
    """Prompts of stored replies, built again. Raises NotFound for what the tenant does not have."""

    def __init__(self, prompts: ReplyPrompts) -> None:
        self._prompts = prompts

    async def prompt_of(self, *, tenant: str, conversation_id: UUID, message_id: UUID) -> Prompt:
        """The exact prompt of a stored reply, built again from its path.

        It is the prompt that was sent as long as model and limits are the same. Raises InvalidRequest for
        a message that is no reply.
        """
        found = await self._prompts.of(
            tenant=tenant, conversation_id=conversation_id, message_id=message_id
        )
        return found.prompt

    async def explain(
        self, *, tenant: str, conversation_id: UUID, message_id: UUID | None
    ) -> PromptExplanation:
        """The prompt of a reply (None: of the latest that is shown), against the turn stored before it.

        Work for the whole conversation. Raises InvalidRequest for a message that is no reply to a prompt,
        EngineUnavailable before the context's size is known.
        """
        ledger = self._prompts.paths.ledger
        if message_id is None:
            message_id = (await ledger.get(tenant, conversation_id)).head_id
            if message_id is None:
                raise InvalidRequest("the conversation has no reply yet", param="message_id")
        now = await self._prompts.of(
            tenant=tenant, conversation_id=conversation_id, message_id=message_id
        )
        earlier = _before(await ledger.messages(tenant, conversation_id), now.reply)
        before = None
        if earlier is not None:
            before = await self._prompts.of(
                tenant=tenant, conversation_id=conversation_id, message_id=earlier.message_id
            )
        return explained(now, before, self._prompts.builder.model)


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
