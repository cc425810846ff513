"""Plays a day of traffic to the real step loop, on a clock that steps move. Never: chooses what comes.

Also the counts that a day is judged by, the engine's own: tokens of prompts and those found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.loop import EngineLoop, LoopSettings
from appliance.engine.trace import TraceWriter
from appliance.errors import UnknownNode
from appliance.model.decoder import Decoder
from appliance.wire.frames import Finished, Frame, Tokens
from bench.day_traffic import Asked, Day

CONNECTION = 1
STEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an engine found on a day. `repeated`: requests sent once more, whole, for an unknown node."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    evicted_pages: int
    preempted: int
    repeated: int

    @property
    def hit_ratio(self) -> float:
        """Of all prompt tokens, those found."""
        return self.hit_tokens / self.prompt_tokens


@dataclass(slots=True, kw_only=True, eq=False)
class _Live:
    asked: Asked
    reply: bytearray
    is_stopping: bool = False


class DayEngine:
    """One engine loop and the day's requests that are in it."""

    def __init__(
        self,
        decoder: Decoder,
        day: Day,
        *,
        pages: int,
        page_size: int,
        context_tokens: int,
        running_max: int = 8,
        trace: TraceWriter | None = None,
    ) -> None:
        self._day = day
        self._now = 0.0
        self._live: dict[str, _Live] = {}
        self._repeated = 0
        self._after_step: list[Callable[[], None]] = []
        self._index = PrefixIndex(page_size=page_size, pages=pages)
        self._loop = EngineLoop(
            decoder,
            decoder.new_cache(pages, page_size),
            self._index,
            LoopSettings(
                context_tokens_max=context_tokens,
                running_max=running_max,
                waiting_max=day.shape.chats,
                step_tokens_max=256,
            ),
            instance="day",
            clock=lambda: self._now,
            send=self._receive,
            trace=trace,
        )

    def run(self) -> Measured:
        """The whole day."""
        while True:
            if self._loop.is_idle:
                following = self._day.next_at
                if following is None:
                    break
                self._now = max(self._now, following)
            for asked in self._day.take(self._now):
                self._live[asked.request.request_id] = _Live(asked=asked, reply=bytearray())
                self._loop.submit(CONNECTION, asked.request)
            self._loop.step()
            self._now += STEP_S
            deeds, self._after_step = self._after_step, []
            for deed in deeds:
                deed()
        self._index.check()
        counters = self._loop.counters
        return Measured(
            requests=counters.admitted,
            prompt_tokens=counters.prompt_tokens,
            hit_tokens=counters.prefix_hit_tokens,
            evicted_pages=self._index.stats()["evicted_pages"],
            preempted=counters.preempted,
            repeated=self._repeated,
        )

    def _receive(self, _connection: int, frame: Frame) -> None:
        # What the loop is told in answer, it is told between steps, as by a server.
        if isinstance(frame, Tokens):
            live = self._live[frame.request_id]
            live.reply += frame.token_ids
            if live.asked.stopped and not live.is_stopping:
                seen = tokens.count(bytes(live.reply))
                if seen >= live.asked.reply_tokens:
                    live.is_stopping = True
                    self._after_step.append(lambda: self._stop(frame.request_id, seen))
        elif isinstance(frame, Finished):
            self._after_step.append(lambda: self._finished(frame))

    def _stop(self, request_id: str, seen: int) -> None:
        self._loop.cancel(CONNECTION, request_id, seen)

    def _finished(self, frame: Finished) -> None:
        live = self._live[frame.request_id]
        if frame.error_code == UnknownNode.code:
            self._repeated += 1
            self._loop.submit(CONNECTION, live.asked.chat.whole(live.asked))
            return
        assert frame.reason != "failed", f"{frame.error_code}: {frame.error_message}"
        del self._live[frame.request_id]
        reply = tokens.head(bytes(live.reply), frame.new_tokens)
        self._day.answered(live.asked, self._now, reply, frame.node)
