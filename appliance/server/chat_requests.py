"""The body of POST /v1/chat/completions as a typed value. Never runs anything.

Fields this server does not know are ignored, as OpenAI does; known ones it cannot honour are refused.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from appliance.chat.params import GenerationParams
from appliance.errors import InvalidRequest, NotFound
from appliance.prompt.messages import ChatMessage, Role
from appliance.server.sampling_fields import TOP_LOGPROBS_MAX, SamplingFields

PART_JOINER = "\n"
"""Between the text parts of one message."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TOOLS = "tools are not supported by this server"


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message's content; only type `text` is taken."""

    type: str
    text: str | None = None


class RequestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `name` is accepted and not used."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Only `text` is taken."""

    type: str


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """One request, of right types and ranges; `check` and the accessors refuse the rest."""

    model: str
    messages: Annotated[list[RequestMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    user: str | None = None

    def check(self, *, model: str) -> None:
        """Refuse what cannot be honoured; raises InvalidRequest or NotFound naming the field."""
        if self.model != model:
            raise NotFound(f"model: the model served here is {model!r}.", param="model")
        if self.n is not None and self.n != 1:
            raise InvalidRequest("n: only 1 answer per request is supported.", param="n")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options: allowed only with stream true.", param="stream_options"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest(
                "top_logprobs: allowed only with logprobs true.", param="top_logprobs"
            )
        if self.response_format is not None and self.response_format.type != "text":
            raise InvalidRequest(
                "response_format: only type text is supported.", param="response_format"
            )
        self._check_end()
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise InvalidRequest(f"{name}: {_TOOLS}.", param=name)

    def _check_end(self) -> None:
        """The two fields say one thing twice: whether the last message is gone on with."""
        if self.add_generation_prompt is None:
            return
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt: true starts a new reply, continue_final_message true does not; "
                "choose one.",
                param="add_generation_prompt",
            )
        if not self.add_generation_prompt and not self.continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt: false is allowed only with continue_final_message true.",
                param="add_generation_prompt",
            )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def chat_messages(self) -> tuple[ChatMessage, ...]:
        """The conversation; raises InvalidRequest naming the message that cannot be used."""
        return tuple(
            _chat_message(message, f"messages[{index}]")
            for index, message in enumerate(self.messages)
        )

    def generation_params(self, *, vocab_size: int, arrived_s: float) -> GenerationParams:
        """Sampling, length, stop strings and urgency; raises InvalidRequest."""
        alternatives = (self.top_logprobs or 0) if self.logprobs else None
        return self.params(vocab_size=vocab_size, arrived_s=arrived_s, logprobs=alternatives)


def _chat_message(message: RequestMessage, path: str) -> ChatMessage:
    if message.role in ("tool", "function"):
        raise InvalidRequest(f"{path}.role: {_TOOLS}.", param=f"{path}.role")
    if message.tool_calls:
        raise InvalidRequest(f"{path}.tool_calls: {_TOOLS}.", param=f"{path}.tool_calls")
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"{path}.role: expected one of {', '.join(_ROLES)}.", param=f"{path}.role"
        )
    return ChatMessage(role=role, content=_text(message.content, f"{path}.content"))


def _text(content: str | list[ContentPart] | None, path: str) -> str:
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{path}: expected a string or text parts.", param=path)
    texts = []
    for index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(
                f"{path}[{index}]: only parts of type text are supported.", param=f"{path}[{index}]"
            )
        texts.append(part.text)
    return PART_JOINER.join(texts)


CHAT_REQUEST = msgspec.json.Decoder(ChatRequest)
