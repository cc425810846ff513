"""The prompts of a conversation: one way from a path and what its user has set to tokens that fit.

Owns what is put around the messages, and the room. Never: reads the ledger, or knows what an engine has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance.chat.catalog import Catalog
from appliance.chat.history import new_message, prompt_messages, spoken
from appliance.chat.lore_placement import Placed
from appliance.chat.lorekeeper import Lorekeeper
from appliance.chat.params import ChatLimits
from appliance.chat.prompting import context_tokens, off_loop
from appliance.chat.scene import (
    greeting_index,
    macros_of,
    rendered_for,
    shared_greetings,
    user_of,
)
from appliance.chat.speakers import led, staged
from appliance.prompt.cast import Cast
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.fit import Fitted, fit
from appliance.prompt.lore.placement import Placement
from appliance.prompt.messages import Prompt
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
    window: Window
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

    def window(self, cast: Cast) -> Window:
        """The room for prompts, as the version settles it; a group has the server's."""
        own = cast.truncation
        reserve, step = own.reply_reserve_tokens, own.step_tokens
        return window(
            limit=context_tokens(self.engine),
            reserve=self.limits.reply_reserve_tokens if reserve is None else reserve,
            step=self.limits.truncation_step_tokens if step is None else step,
        )

    async def build(
        self,
        conversation: Conversation,
        path: Sequence[Message],
        user: NewMessage | None = None,
        *,
        speaker: str | None = None,
    ) -> BuiltPrompt:
        """The prompt for a reply to the last message of a path, or to a new one of a user after it.
        `speaker` is the member of a group who replies."""
        uncut = await self._uncut(conversation, path, user, speaker)
        fitted = await self._fitted(uncut)
        return BuiltPrompt(fitted=fitted, rendered=uncut.rendered, window=uncut.window)

    async def keeper(self, conversation: Conversation, path: Sequence[Message]) -> Lorekeeper:
        """Who decides about the lore of a conversation, on a path or beyond what is known of it."""
        cast = await self.catalog.cast(conversation)
        asks = cast.lore.asks_greeting
        return Lorekeeper(
            namespace=tenant_namespace(conversation.tenant),
            lore=cast.lore,
            tokenizer=self.model.tokenizer,
            note=conversation.scene.note,
            macros=macros_of(conversation, cast),
            room_tokens=self.window(cast).room,
            owners=cast.owners,
            greeting=await greeting_index(conversation, cast, path) if asks else None,
            anchor_id=conversation.anchor_id,
        )

    async def _uncut(
        self,
        conversation: Conversation,
        path: Sequence[Message],
        user: NewMessage | None,
        speaker: str | None,
    ) -> _Uncut:
        cast, name = await self.catalog.cast(conversation), user_of(conversation.scene)
        # Where a new message follows, nobody answers the one before it: its reply said nothing.
        answering = speaker if user is None else None
        said = staged(spoken(path), cast, name=name, speaker=answering)
        history = prompt_messages(
            said,
            tenant=conversation.tenant,
            greetings=await shared_greetings(conversation, cast, said),
            model=self.model,
        )
        if user is not None:
            new = led(user, cast, name=name, speaker=speaker)
            history += new_message(new, conversation.tenant, self.model)
        rendered = await rendered_for(conversation, cast, speaker=speaker)
        namespace = tenant_namespace(conversation.tenant)
        placed = Placed(
            front=[part.message(namespace) for part in rendered.before],
            history=history,
            after=[part.message(namespace) for part in rendered.after],
        )
        is_anew = cast.lore.placement is Placement.AS_WRITTEN
        if is_anew:
            placed = await self._with_lore(conversation, cast, placed, said, user)
        return _Uncut(placed=placed, rendered=rendered, window=self.window(cast), is_anew=is_anew)

    async def _with_lore(
        self,
        conversation: Conversation,
        cast: Cast,
        placed: Placed,
        said: Sequence[Message],
        user: NewMessage | None,
    ) -> Placed:
        keeper = await self.keeper(conversation, said)
        namespace = tenant_namespace(conversation.tenant)
        return await off_loop(
            cast.lore.standing_chars, lambda: keeper.as_written(said, user, placed, namespace)
        )

    async def _fitted(self, uncut: _Uncut) -> Fitted:
        space, placed = uncut.window, uncut.placed
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
            may_wait=self.model.chat_format.may_run_process,
        )
        return replace(fitted, is_plain=False) if uncut.is_anew else fitted
