"""Makes a span of each request from the frames that come and go. Never: looks at tokens, or sends one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.spans import Span, Tracer
from appliance.wire.frames import Admitted, Finished, Frame, Generate, Tokens

SPAN = "generate"


@dataclass(slots=True, kw_only=True)
class _Open:
    """A request that is not finished."""

    started_s: float
    attributes: dict[str, str | int | float]
    moments: dict[str, float] = field(default_factory=dict)


class RequestSpans:
    """The open requests of an engine, by connection and request id."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float]) -> None:
        self._tracer = tracer
        self._clock = clock
        self._open: dict[tuple[int, str], _Open] = {}

    def arrived(self, connection: int, request: Generate) -> None:
        """A request came in."""
        attributes: dict[str, str | int | float] = {"priority": request.priority}
        opened = _Open(started_s=self._clock(), attributes=attributes)
        self._open.setdefault((connection, request.request_id), opened)

    def sent(self, connection: int, frame: Frame) -> None:
        """A frame goes out; the last of a request ends its span."""
        if not isinstance(frame, Admitted | Tokens | Finished):
            return
        opened = self._open.get((connection, frame.request_id))
        if opened is None:
            return
        now = self._clock()
        if isinstance(frame, Admitted):
            opened.moments["admitted"] = now
            opened.attributes["prompt_tokens"] = frame.prompt_tokens
            opened.attributes["prefix_hit_tokens"] = frame.prefix_hit_tokens
        elif isinstance(frame, Tokens):
            opened.moments.setdefault("first_token", now)
        else:
            del self._open[connection, frame.request_id]
            opened.attributes["new_tokens"] = frame.new_tokens
            opened.attributes["reason"] = frame.reason
            self._tracer.tell(
                Span(
                    name=SPAN,
                    request_id=frame.request_id,
                    started_s=opened.started_s,
                    ended_s=now,
                    attributes=opened.attributes,
                    moments=opened.moments,
                    failure=frame.error_code,
                )
            )
