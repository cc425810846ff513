"""The prompts of a conversation: one way from a path and what its user has set to tokens that fit.

Owns what is put around the messages, and the room. Never: reads the ledger, or knows what an engine has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance.chat.catalog import Catalog
from appliance.chat.history import new_message, prompt_messages, spoken
from appliance.chat.lore import Lorekeeper
from appliance.chat.lore_placement import Placed
from appliance.chat.params import ChatLimits
from appliance.chat.prompting import context_tokens, off_loop
from appliance.chat.scene import macros_of, rendered_for, shared_greetings
from appliance.prompt.characters import CharacterVersion
from appliance.prompt.fit import Fitted, fit, forms_of_front
from appliance.prompt.lore.books import Placement
from appliance.prompt.messages import Prompt
from appliance.prompt.model_text import ModelText
from appliance.prompt.namespace import tenant_namespace
from appliance.prompt.templates.parts import Rendered
from appliance.prompt.truncate import Window, window
from appliance.store.records import Conversation, Message, NewMessage
from appliance.wire.access import EngineAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """A prompt that fits, and the parts and the room that it was made of."""

    fitted: Fitted
    rendered: Rendered
    window: Window

    @property
    def prompt(self) -> Prompt:
        """What the model reads."""
        return self.fitted.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uncut:
    """A whole prompt before the cut. `is_anew`: the next one may have other texts among its messages."""

    placed: Placed
    rendered: Rendered
    is_anew: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBuilder:
    """Builds prompts with the version and the scene that a conversation holds. Keeps no state.

    Its methods raise EngineUnavailable before the context's size is known, NotFound, TemplateError and
    StorageUnavailable for a version that cannot be had, and what `fit` raises.
    """

    engine: EngineAccess
    model: ModelText
    catalog: Catalog
    limits: ChatLimits

    def window(self) -> Window:
        """The room for prompts."""
        return window(
            limit=context_tokens(self.engine),
            reserve=self.limits.reply_reserve_tokens,
            step=self.limits.truncation_step_tokens,
        )

    async def build(
        self,
        conversation: Conversation,
        path: Sequence[Message],
        user: NewMessage | None = None,
    ) -> BuiltPrompt:
        """The prompt for a reply to the last message of a path, or to a new one of a user after it."""
        uncut = await self._uncut(conversation, path, user)
        fitted = await self._fitted(uncut, uncut.placed)
        return BuiltPrompt(fitted=fitted, rendered=uncut.rendered, window=self.window())

    async def forms(
        self, conversation: Conversation, path: Sequence[Message]
    ) -> tuple[Prompt, ...]:
        """The prompts of a path with every front that a cut may have left before it."""
        uncut = await self._uncut(conversation, path, None)
        return tuple(
            [
                (await self._fitted(uncut, replace(uncut.placed, front=front))).prompt
                for front in forms_of_front(uncut.placed.front)
            ]
        )

    async def keeper(self, conversation: Conversation) -> Lorekeeper:
        """Who decides about the lore of a conversation."""
        chosen = await self._chosen(conversation)
        return Lorekeeper(
            namespace=tenant_namespace(conversation.tenant),
            lore=chosen.lore,
            tokenizer=self.model.tokenizer,
            note=conversation.scene.note,
            macros=macros_of(conversation, chosen),
            room_tokens=self.window().room,
        )

    async def _chosen(self, conversation: Conversation) -> CharacterVersion:
        return await self.catalog.of(conversation.character, conversation.prompt_version)

    async def _uncut(
        self, conversation: Conversation, path: Sequence[Message], user: NewMessage | None
    ) -> _Uncut:
        chosen, said = await self._chosen(conversation), spoken(path)
        history = prompt_messages(
            said,
            tenant=conversation.tenant,
            greetings=await shared_greetings(conversation, chosen, said),
            model=self.model,
        )
        if user is not None:
            history += new_message(user, conversation.tenant, self.model)
        rendered = await rendered_for(conversation, chosen)
        namespace = tenant_namespace(conversation.tenant)
        placed = Placed(
            front=[part.message(namespace) for part in rendered.before],
            history=history,
            after=[part.message(namespace) for part in rendered.after],
        )
        is_anew = chosen.lore.placement is Placement.AS_WRITTEN
        if is_anew:
            keeper = await self.keeper(conversation)
            placed = keeper.as_written(said, user, placed, namespace)
        return _Uncut(placed=placed, rendered=rendered, is_anew=is_anew)

    async def _fitted(self, uncut: _Uncut, placed: Placed) -> Fitted:
        space = self.window()
        chars = sum(len(said.content) for said in placed.history if said.token_ids is None)
        fitted = await off_loop(
            chars,
            lambda: fit(
                self.model.chat_format,
                placed.front,
                placed.history,
                space,
                after=placed.after,
                history_priority=uncut.rendered.history_priority,
            ),
        )
        return replace(fitted, is_plain=False) if uncut.is_anew else fitted
