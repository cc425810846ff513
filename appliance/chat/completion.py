"""One stateless turn: a client's whole message list, answered and forgotten.

The prompt is never cut. Never: stores anything; the ids of a reply are remembered in the tokenizer's
memo, so that a client that sends it back hits the cache.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from uuid import UUID, uuid4

from appliance.chat.events import Event, TurnDone, TurnStarted
from appliance.chat.generation import Generation
from appliance.chat.params import ChatLimits, GenerationParams
from appliance.chat.prompting import context_tokens, off_loop, room_for_reply
from appliance.chat.reply import Reply, remember
from appliance.errors import ContextLengthExceeded, InvalidRequest
from appliance.prompt.chat_format.chat_format import End
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.chat_format.render import render
from appliance.prompt.messages import ChatMessage, Prompt, PromptMessage, Zone
from appliance.prompt.namespace import tenant_namespace
from appliance.wire.access import EngineAccess
from appliance.wire.frames import Admitted


class Completions:
    """Stateless turns. Safe to share between all requests."""

    def __init__(
        self,
        *,
        engine: EngineAccess,
        model: ModelText,
        limits: ChatLimits,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._engine = engine
        self._model = model
        self._limits = limits
        self._new_id = new_id

    async def run(
        self,
        *,
        tenant: str,
        messages: Sequence[ChatMessage],
        params: GenerationParams,
        continue_final_message: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Answer the messages, or go on writing the last one (an assistant's).

        `params.new_tokens_max` is lowered to the room that the prompt leaves. Raises InvalidRequest,
        ContextLengthExceeded (with the numbers) and EngineUnavailable before TurnStarted; a failure
        of the engine is raised where it happens.
        """
        end = End.CONTINUE if continue_final_message else End.REPLY
        prompt = await self._prompt(tenant, messages, end)
        turn_id = self._new_id()
        context = context_tokens(self._engine)
        _check_room(prompt, context, params.new_tokens_max)
        generation = Generation(
            self._engine,
            self._model,
            request_id=str(turn_id),
            tenant=tenant,
            prompt=prompt,
            params=params,
            new_tokens_max=room_for_reply(
                context, prompt.tokens, params.new_tokens_max, self._limits
            ),
        )
        async with aclosing(generation.run()) as events:
            async for event in events:
                if isinstance(event, Admitted):
                    yield TurnStarted(
                        turn_id=turn_id,
                        user_message_id=None,
                        assistant_message_id=None,
                        prompt_tokens=prompt.tokens,
                        prefix_hit_tokens=event.prefix_hit_tokens,
                        messages_dropped=0,
                    )
                else:
                    yield event
        if generation.failure is not None:
            raise generation.failure
        reply = generation.reply()
        self._remember(tenant, messages, reply, end)
        yield TurnDone(
            finish_reason=reply.finish_reason, text=reply.text, usage=reply.usage, message=None
        )

    async def _prompt(self, tenant: str, messages: Sequence[ChatMessage], end: End) -> Prompt:
        chars = sum(len(message.content) for message in messages)
        self._check_size(messages, chars)
        namespace = tenant_namespace(tenant)
        prompt_messages = [
            PromptMessage(
                name=f"messages[{index}]",
                role=message.role,
                zone=Zone.CHARACTER if message.role == "system" else Zone.HISTORY,
                content=message.content,
                namespace=namespace,
            )
            for index, message in enumerate(messages)
        ]
        chat_format = self._model.chat_format

        return await off_loop(
            chars,
            lambda: render(chat_format, prompt_messages, end),
            may_wait=chat_format.may_run_process,
        )

    def _check_size(self, messages: Sequence[ChatMessage], chars: int) -> None:
        if len(messages) > self._limits.messages_max:
            raise InvalidRequest(
                f"at most {self._limits.messages_max} messages are taken, here are {len(messages)}",
                param="messages",
            )
        if chars > self._limits.prompt_chars_max:
            raise ContextLengthExceeded(
                f"the messages are {chars} characters; more than {self._limits.prompt_chars_max} "
                "are not read",
                param="messages",
            )

    def _remember(
        self, tenant: str, messages: Sequence[ChatMessage], reply: Reply, end: End
    ) -> None:
        tokenizer = self._model.tokenizer
        namespace = tenant_namespace(tenant)
        text, token_ids = reply.text, reply.token_ids
        if end is End.CONTINUE and token_ids is not None:
            begun = messages[-1].content
            text, token_ids = begun + text, tokenizer.encode(begun, namespace) + token_ids
        remember(tokenizer, namespace, text, token_ids)


def _check_room(prompt: Prompt, context: int, asked: int | None) -> None:
    if prompt.tokens < context:
        return
    wanted = "" if asked is None else f", {asked} tokens were requested for the reply"
    raise ContextLengthExceeded(
        f"this model's context is {context} tokens, the messages are {prompt.tokens} tokens{wanted}",
        param="messages",
    )
