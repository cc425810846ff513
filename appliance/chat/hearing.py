"""A new message of a user: the lore that it calls up, and the prompt for its reply, built from a path.

Owns that a message is heard again where the cut of its own prompt took away what it calls up. Never:
reads the ledger, stores, or goes on from what is known of a conversation (`plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from appliance.chat.history import spoken
from appliance.chat.lore import Recall
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.prompt_builder import PromptBuilder
from appliance.chat.prompting import off_loop
from appliance.prompt.chat_format.contents import encode_content
from appliance.prompt.fit import Fitted
from appliance.prompt.namespace import tenant_namespace
from appliance.store.records import Conversation, Message, NewMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A new message with its lore, and what its path has come to with it."""

    user: NewMessage
    recall: Recall


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerable:
    """The prompt for the reply to a message, as it was heard for it."""

    heard: Heard
    fitted: Fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Hears new messages. Keeps no state; raises as `PromptBuilder`, and InvalidRequest for a text that
    cannot be encoded."""

    builder: PromptBuilder
    new_id: Callable[[], UUID]

    async def hear(
        self, conversation: Conversation, keeper: Lorekeeper, before: Recall, text: str
    ) -> Heard:
        """A message at the end of a path that has come to `before`."""
        tokenizer = self.builder.model.tokenizer
        namespace = tenant_namespace(conversation.tenant)
        token_ids = await off_loop(
            len(text), lambda: encode_content(tokenizer, text, namespace, param="text")
        )
        # What a book has without a key is measured too: of a large one as much as a long text.
        work = len(text) + keeper.lore.standing_chars
        recall, lore = await off_loop(work, partial(keeper.heard, before, text))
        user = NewMessage(
            message_id=self.new_id(),
            role="user",
            text=text,
            token_ids=token_ids,
            tokenizer=tokenizer.fingerprint,
            lore=lore,
        )
        return Heard(user=user, recall=recall)

    async def answerable(
        self,
        conversation: Conversation,
        path: Sequence[Message],
        keeper: Lorekeeper,
        before: Recall,
        heard: Heard,
        *,
        speaker: str | None = None,
    ) -> Answerable:
        """The whole prompt behind a path that has come to `before`, for a message `heard` there."""
        built = await self.builder.build(conversation, path, heard.user, speaker=speaker)
        left = _standing(before, path, built.fitted)
        if left.before != before.before:
            # What a cut has just taken away may be what this very message calls up.
            again = await self.hear(conversation, keeper, left, heard.user.text)
            if again.user.lore != heard.user.lore:
                built = await self.builder.build(conversation, path, again.user, speaker=speaker)
                heard = again
        recall = heard.recall.standing(
            spoken(path)[built.fitted.messages_dropped :],
            heard.user.lore,
            is_full=built.fitted.messages_dropped > 0,
        )
        return Answerable(heard=Heard(user=heard.user, recall=recall), fitted=built.fitted)


def _standing(before: Recall, path: Sequence[Message], fitted: Fitted) -> Recall:
    kept = fitted.messages_dropped
    return before.standing(spoken(path)[kept:], (), is_full=kept > 0)
