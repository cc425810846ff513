"""The prompts of stored replies, built again with the version and the scene that each was made with.

Never: says why one differs from another (`prompt_explanation`), or asks an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from appliance.chat.left_behind import LeftBehind, left_behind
from appliance.chat.prompt_builder import BuiltPrompt, PromptBuilder
from appliance.chat.stored_paths import StoredPaths, ends_with_reply
from appliance.errors import InvalidRequest
from appliance.prompt.messages import Prompt
from appliance.store.records import Conversation, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPrompt:
    """A stored reply, which ends `path`, and its prompt built again.

    `conversation` is as it was for this turn. `is_scene_known` is False where what the user had set then
    is not known any more: it was built with what is set now. `tokenizer` is the model's own.
    """

    conversation: Conversation
    path: tuple[Message, ...]
    built: BuiltPrompt
    is_scene_known: bool
    tokenizer: str

    @property
    def reply(self) -> Message:
        """The reply."""
        return self.path[-1]

    @property
    def prompt(self) -> Prompt:
        """Its prompt."""
        return self.built.prompt

    @property
    def is_as_sent(self) -> bool:
        """Whether the prompt is the one that was sent, as far as can be told: it was made with the same,
        by the same tokenizer, and has the size that the turn counted."""
        return (
            self.is_scene_known
            and self.reply.tokenizer in (None, self.tokenizer)
            and self.prompt.tokens == self.reply.prompt_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPrompts:
    """Prompts of stored replies. Raises NotFound for what the tenant does not have, and as
    `PromptBuilder`. Work for the whole path."""

    paths: StoredPaths
    builder: PromptBuilder

    async def of(self, *, tenant: str, conversation_id: UUID, message_id: UUID) -> ReplyPrompt:
        """The prompt of a reply; raises InvalidRequest for a message that is none."""
        now = await self.paths.conversation(tenant, conversation_id)
        path = await self.paths.to_reply(now, message_id)
        then, is_known = _as_of(now, path[-1])
        return ReplyPrompt(
            conversation=then,
            path=path,
            built=await self.builder.build(then, path[:-1], speaker=path[-1].speaker),
            is_scene_known=is_known,
            tokenizer=self.builder.model.tokenizer.fingerprint,
        )

    async def shown(
        self, *, tenant: str, conversation_id: UUID
    ) -> tuple[Conversation, tuple[Message, ...], LeftBehind]:
        """The conversation, the path that is shown, and what its turn would leave if it ran now.

        Where the head is no reply to a prompt, the prompt ends with the head. Raises InvalidRequest for a
        conversation without messages.
        """
        conversation = await self.paths.conversation(tenant, conversation_id)
        path = await self.paths.to_leaf(conversation, conversation.head_id)
        if not path:
            raise InvalidRequest("the conversation has no messages yet", param="conversation")
        reply = path[-1] if ends_with_reply(path) else None
        built = await self.builder.build(
            conversation,
            path if reply is None else path[:-1],
            speaker=None if reply is None else reply.speaker,
        )
        return conversation, path, left_behind(built.prompt, reply, self.builder.model.tokenizer)


def _as_of(now: Conversation, reply: Message) -> tuple[Conversation, bool]:
    """(the conversation as it was for a reply, whether what its user had set is known).

    A reply from before versions were written down has that of the conversation.
    """
    then = replace(now, prompt_version=reply.prompt_version or now.prompt_version)
    return then, reply.scene_digest in (None, now.scene.digest)
