"""Plays a day of traffic to the real step loop and its tiers, on a clock that steps move. Never: chooses
what comes.

Also the counts that a day is judged by, the engine's own: tokens of prompts, those found, and to what the
others are owed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance import tokens
from appliance._core import PrefixIndex
from appliance.engine.loop import EngineLoop, LoopSettings
from appliance.engine.replay import Sizes
from appliance.engine.tiers import Tiers
from appliance.engine.trace import TraceWriter
from appliance.errors import UnknownNode
from appliance.model.decoder import Decoder
from appliance.wire.frames import Admitted, Finished, Frame, Tokens
from bench.day_traffic import Asked, Cause, Day

CONNECTION = 1
STEP_S = 0.2
RUNNING_MAX = 32
STEP_TOKENS_MAX = 4_096


@dataclass(slots=True, kw_only=True)
class Missed:
    """Requests of one cause, and the tokens of their prompts that were computed.

    `unsaid`: of these, tokens that nobody had sent or been answered before; no cache could have them.
    """

    requests: int = 0
    tokens: int = 0
    unsaid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an engine found on a day. `repeated`: requests sent once more, whole, for an unknown node."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    missed: Mapping[Cause, Missed]
    evicted_pages: int
    onloaded_tokens: int
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
        sizes: Sizes,
        *,
        context_tokens: int,
        trace: TraceWriter | None = None,
    ) -> None:
        """`sizes` without a disk."""
        assert sizes.disk_slots == 0
        self._day = day
        self._now = 0.0
        self._live: dict[str, _Live] = {}
        self._repeated = 0
        self._missed = {cause: Missed() for cause in Cause}
        self._after_step: list[Callable[[], None]] = []
        self._index = PrefixIndex(
            page_size=sizes.page_size, pages=sizes.pages, host_slots=sizes.host_slots
        )
        cache = decoder.new_cache(sizes.pages, sizes.page_size)
        self._loop = EngineLoop(
            decoder,
            cache,
            self._index,
            LoopSettings(
                context_tokens_max=context_tokens,
                running_max=RUNNING_MAX,
                waiting_max=day.shape.chats,
                step_tokens_max=STEP_TOKENS_MAX,
            ),
            tiers=Tiers(self._index, cache, host_slots=sizes.host_slots),
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
        index = self._index.stats()
        return Measured(
            requests=counters.admitted,
            prompt_tokens=counters.prompt_tokens,
            hit_tokens=counters.prefix_hit_tokens,
            missed=self._missed,
            evicted_pages=index["evicted_pages"],
            onloaded_tokens=index["onloaded_tokens"],
            preempted=counters.preempted,
            repeated=self._repeated,
        )

    def _receive(self, _connection: int, frame: Frame) -> None:
        # What the loop is told in answer, it is told between steps, as by a server.
        if isinstance(frame, Admitted):
            asked = self._live[frame.request_id].asked
            missed = self._missed[asked.cause]
            missed.requests += 1
            missed.tokens += frame.prompt_tokens - frame.prefix_hit_tokens
            missed.unsaid += asked.unsaid_tokens
        elif isinstance(frame, Tokens):
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
