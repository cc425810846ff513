"""One request to the engine as text: its tokens decoded, stop strings found, its end explained.

What was yielded as text counts as delivered; what is not delivered does not stay. Never: what the
prompt means, or where a reply is stored.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from appliance import errors
from appliance._core import StreamDecoder
from appliance.chat.events import Delta, Usage
from appliance.chat.params import GenerationParams
from appliance.chat.reply import Reply, ids_of
from appliance.errors import (
    ApplianceError,
    DeadlineExceeded,
    GenerationFailed,
    Overloaded,
    UnknownNode,
)
from appliance.prompt.chat_format.model_text import ModelText
from appliance.prompt.messages import Prompt
from appliance.store.text import storable
from appliance.tokens import count, head
from appliance.wire.access import EngineAccess
from appliance.wire.frames import (
    DEADLINE_MS_MAX,
    Admitted,
    Finished,
    FinishReason,
    Generate,
    Node,
    TokenLogprobs,
    Tokens,
)

_ERRORS: dict[str, type[ApplianceError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ApplianceError) and kind is not ApplianceError
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Onward:
    """A request as one of a conversation's.

    `node` is where the engine is to go on, and then the prompt holds what follows it; `whole` gives the
    prompt from the start, should the engine not know the node.
    """

    conversation: bytes
    node: Node | None
    whole: Callable[[], Awaitable[Prompt]]


class Generation:
    """A request and its reply so far. `run` once; afterwards `finish_reason` says how it ended.

    `failure` is set when the reason is `failed`. `admitted` is None until the engine took the request.
    `begun_at` is when the request came, by `clock`; without it, now.
    """

    def __init__(
        self,
        engine: EngineAccess,
        model: ModelText,
        *,
        request_id: str,
        tenant: str,
        prompt: Prompt,
        params: GenerationParams,
        new_tokens_max: int,
        onward: Onward | None = None,
        begun_at: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._onward = onward
        self._prompt_tokens = prompt.tokens
        self._tokenizer = model.tokenizer
        self._decoder = StreamDecoder(
            model.tokenizer, stop=(*params.stop, *model.chat_format.stop_strings)
        )
        self._request = Generate(
            request_id=request_id,
            token_ids=prompt.token_ids,
            stretches=list(prompt.stretches),
            sampling=params.sampling,
            new_tokens_max=new_tokens_max,
            stop_token_ids=list(model.stop_token_ids),
            closing=prompt.closing,
            after=None if onward is None else onward.node,
            conversation=b"" if onward is None else onward.conversation,
            tenant=tenant.encode(),
            priority=params.priority,
        )
        self._deadline_at = params.deadline_at
        self._clock = clock
        self._begun_at = clock() if begun_at is None else begun_at
        self._first_text_at: float | None = None
        self._generated = bytearray()
        self._delivered: list[str] = []
        self._is_stopping = False
        self._is_complete = False
        self.admitted: Admitted | None = None
        self.finish_reason: FinishReason | None = None
        self.failure: ApplianceError | None = None
        self._node: Node | None = None

    async def run(self) -> AsyncGenerator[Admitted | Delta, None]:
        """Send the request; yield Admitted once, then Deltas.

        Closed early, the request is cancelled in the engine, which keeps exactly what was delivered.
        """
        if self._is_stopping:
            self.finish_reason = "cancelled"
            return
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    delta = self._receive(event)
                    if delta is not None:
                        yield delta
                    if self.finish_reason is not None:
                        return
        except ApplianceError as error:
            self.finish_reason = "failed"
            self.failure = error
        finally:
            if self.finish_reason is None:
                self.finish_reason = "cancelled"

    async def _events(self) -> AsyncGenerator[Admitted | Tokens | Finished, None]:
        """The engine's events; when it does not know the node, those of the whole prompt."""
        async with aclosing(self._sent()) as events:
            async for event in events:
                if isinstance(event, Finished) and event.error_code == UnknownNode.code:
                    break
                yield event
            else:
                return
        assert self._onward is not None
        whole = await self._onward.whole()
        if self._is_stopping:
            return
        self._request = msgspec.structs.replace(
            self._request, after=None, token_ids=whole.token_ids, stretches=list(whole.stretches)
        )
        async with aclosing(self._sent()) as events:
            async for event in events:
                yield event

    def _sent(self) -> AsyncGenerator[Admitted | Tokens | Finished, None]:
        request = msgspec.structs.replace(self._request, deadline_ms=self._deadline_ms())
        # Tokens whose text is held back were received, and seen by nobody.
        return self._engine.generate(request, seen_tokens=lambda: self._decoder.delivered_tokens)

    def _deadline_ms(self) -> int | None:
        """What is left of the deadline for the engine; raises DeadlineExceeded when nothing is."""
        if self._deadline_at is None:
            return None
        left_ms = int((self._deadline_at - self._clock()) * 1000)
        if left_ms < 1:
            raise DeadlineExceeded("the request did not reach the engine within its deadline")
        return min(left_ms, DEADLINE_MS_MAX)

    def stop(self) -> None:
        """End the reply where it was delivered; `run` then ends with the reason `cancelled`."""
        self._is_stopping = True
        self._engine.cancel(self._request.request_id, self._decoder.delivered_tokens)

    def reply(self) -> Reply:
        """The reply as it was delivered. Costs a decoding: call it once, when `run` has ended.

        Its ids are those generated where they say exactly its text, else its encoding. Tokens of a
        stop string were generated and count in its usage.
        """
        assert self.finish_reason is not None
        text = "".join(self._delivered)
        generated = bytes(self._generated)
        kept = generated if self._is_complete else head(generated, self._decoder.delivered_tokens)
        token_ids = ids_of(self._tokenizer, text, kept)
        return Reply(
            text=text,
            token_ids=token_ids,
            node=self._node if token_ids == kept else None,
            finish_reason=self.finish_reason,
            usage=Usage(
                prompt_tokens=self._prompt_tokens,
                prefix_hit_tokens=0 if self.admitted is None else self.admitted.prefix_hit_tokens,
                new_tokens=count(generated),
            ),
            ttft_ms=None if self._first_text_at is None else self._ms_to(self._first_text_at),
            reply_ms=self._ms_to(self._clock()),
        )

    def _ms_to(self, at: float) -> int:
        return max(0, round((at - self._begun_at) * 1000))

    def _receive(self, event: Admitted | Tokens | Finished) -> Admitted | Delta | None:
        if isinstance(event, Admitted):
            self.admitted = event
            return event
        if isinstance(event, Tokens):
            return self._take(event)
        return self._end(event)

    def _take(self, event: Tokens) -> Delta | None:
        if self._is_stopping:
            return None  # generated after the user stopped reading
        self._generated += event.token_ids
        text = self._decoder.push(event.token_ids)
        if self._decoder.stopped:
            self.finish_reason = "stop"
            self._engine.cancel(self._request.request_id, self._decoder.delivered_tokens)
        return self._deliver(text, tuple(event.logprobs or ()))

    def _end(self, event: Finished) -> Delta | None:
        self.finish_reason = event.reason
        self._node = event.node
        if event.reason == "failed":
            self.failure = _failure(event)
        if event.reason not in ("stop", "length"):
            return None
        if self._is_stopping:
            self.finish_reason = "cancelled"  # it ended by itself while the stop was on its way
            return None
        self._is_complete = True
        return self._deliver(self._decoder.finish(), ())

    def _deliver(self, text: str, logprobs: tuple[TokenLogprobs, ...]) -> Delta | None:
        if not text and not logprobs:
            return None
        # What is shown is what can be stored: the same text to both.
        text = storable(text)
        if text and self._first_text_at is None:
            self._first_text_at = self._clock()
        self._delivered.append(text)
        return Delta(text=text, logprobs=logprobs)


def _failure(event: Finished) -> ApplianceError:
    """The failure's class by its code; the door decides what of the message a client may read."""
    kind = _ERRORS.get(event.error_code or "", GenerationFailed)
    message = event.error_message or kind.code
    if kind is Overloaded and event.retry_after_s is not None:
        return Overloaded(message, retry_after_s=event.retry_after_s)
    return kind(message)
