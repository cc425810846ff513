"""The exact shapes of OpenAI's chat completion answers, whole and in chunks. Computes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance._core import Tokenizer
from appliance.chat.events import Delta, Event, TurnDone, TurnStarted, Usage
from appliance.server.sse import event_bytes
from appliance.wire.frames import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One answer: what all of its chunks repeat, and how its events look."""

    request_id: str
    model: str
    fingerprint: str | None
    tokenizer: Tokenizer
    with_usage: bool
    with_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))

    def chunks(self, event: Event) -> Iterator[bytes]:
        """The chunks of one event, as server-sent events."""
        if isinstance(event, TurnStarted):
            yield self._chunk([_choice({"role": "assistant", "content": ""})])
        elif isinstance(event, Delta):
            logprobs = self._logprobs(event.logprobs) if self.with_logprobs else None
            yield self._chunk([_choice({"content": event.text}, logprobs=logprobs)])
        else:
            yield self._chunk([_choice({}, finish_reason=event.finish_reason)])
            if self.with_usage:
                yield self._chunk([], usage=usage_fields(event.usage))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        done = events[-1]
        assert isinstance(done, TurnDone)
        logprobs = None
        if self.with_logprobs:
            deltas = [event for event in events if isinstance(event, Delta)]
            logprobs = self._logprobs([entry for delta in deltas for entry in delta.logprobs])
        message = {"role": "assistant", "content": done.text, "refusal": None}
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": done.finish_reason,
                }
            ],
            "usage": usage_fields(done.usage),
        }

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head("chat.completion.chunk"), "choices": choices}
        if self.with_usage:
            chunk["usage"] = usage
        return event_bytes(chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _logprobs(self, entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._token(entry.token_id, entry.logprob),
                    "top_logprobs": [self._token(*alternative) for alternative in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.token_bytes(token_id)
        return {
            "token": text.decode("utf-8", "replace"),
            "logprob": logprob,
            "bytes": list(text),
        }


def usage_fields(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.new_tokens,
        "total_tokens": usage.prompt_tokens + usage.new_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.prefix_hit_tokens},
    }


def _choice(
    delta: dict[str, Any],
    *,
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
