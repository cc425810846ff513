"""Plays a day of traffic to the prefix index alone: the sizes of a box, no model, a clock of its own.

A request is admitted when its pages can be had, its prompt is committed after the time of its misses and
its reply after that of its tokens, at the speeds below. Never: K/V.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine.replay import Sizes
from appliance.engine.scheduler import ADMIT_AHEAD_TOKENS
from appliance.engine.trace import RequestTrace, TraceWriter
from appliance.tokens import TokenIds
from appliance.wire.frames import FinishReason, Generate, Node
from bench.day_engine import Measured
from bench.day_traffic import Asked, Day

PREFILL_TOKENS_PER_S = 20_000
DECODE_S = 0.03
"""A token of a reply: with a few hundred others in the batch of a GPU."""
RUNNING_MAX = 256
INSTANCE = "day"


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    asked: Asked
    request: Generate
    lease: Lease
    trace: RequestTrace | None
    prompt_tokens: int
    has_prompt: bool = False


class DayIndex:
    """One index and the day's requests that are in it. `run` it once."""

    def __init__(
        self,
        day: Day,
        sizes: Sizes,
        *,
        onload_tokens_min: int | None = 0,
        trace: TraceWriter | None = None,
    ) -> None:
        self._day = day
        self._onload_tokens_min = onload_tokens_min
        self._trace = trace
        self._index = PrefixIndex(
            page_size=sizes.page_size,
            pages=sizes.pages,
            host_slots=sizes.host_slots,
            disk_slots=sizes.disk_slots,
        )
        self._waiting: deque[Asked] = deque()
        # (when, number, whose next commit is due)
        self._due: list[tuple[float, int, _Running]] = []
        self._count = 0
        self._prompt_tokens = 0
        self._hit_tokens = 0
        self._repeated = 0

    def run(self) -> Measured:
        """The whole day."""
        while True:
            times = [self._due[0][0]] if self._due else []
            if (following := self._day.next_at) is not None:
                times.append(following)
            if not times:
                break
            now = min(times)
            while self._due and self._due[0][0] <= now:
                self._go_on(heapq.heappop(self._due)[2], now)
            self._waiting.extend(self._day.take(now))
            while self._waiting and len(self._due) < RUNNING_MAX:
                if not self._start(self._waiting[0], now):
                    break
                self._waiting.popleft()
        assert not self._waiting
        self._index.check()
        return Measured(
            requests=self._count,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            evicted_pages=self._index.stats()["evicted_pages"],
            preempted=0,
            repeated=self._repeated,
        )

    def _start(self, asked: Asked, now: float) -> bool:
        request = asked.request
        node = request.after
        if node is not None and self._index.node_tokens(node.number) != node.tokens:
            self._repeated += 1
            request = asked.chat.whole(asked)
            node = None
        first = 0 if node is None else node.tokens
        prompt_tokens = first + tokens.count(request.token_ids)
        ahead = min(request.new_tokens_max, 1 + ADMIT_AHEAD_TOKENS)
        lease = self._index.admit(
            request.token_ids,
            _after(request.stretches, first),
            prompt_tokens + ahead + tokens.count(request.closing),
            after=None if node is None else node.number,
            conversation=request.conversation,
            onload_tokens_min=self._onload_tokens_min,
        )
        if lease is None:
            assert self._due, "the device has room for one request at least"
            return False
        self._index.take_moves()
        trace = None
        self._count += 1
        if self._trace is not None:
            trace = self._trace.request(request, ordinal=self._count, arrived_s=now)
            trace.admitted(lease)
        if lease.onloaded_tokens:
            lease.commit(lease.hit_tokens)
        self._prompt_tokens += prompt_tokens
        self._hit_tokens += lease.hit_tokens
        running = _Running(
            asked=asked, request=request, lease=lease, trace=trace, prompt_tokens=prompt_tokens
        )
        self._wait(running, now + (prompt_tokens - lease.hit_tokens) / PREFILL_TOKENS_PER_S)
        return True

    def _wait(self, running: _Running, until: float) -> None:
        # A chat has one request at a time, so its number tells two of the same moment apart.
        heapq.heappush(self._due, (until, running.asked.chat.number, running))

    def _go_on(self, running: _Running, now: float) -> None:
        """Commit the prompt, or the reply and end."""
        if not running.has_prompt:
            running.has_prompt = True
            self._commit(running, running.prompt_tokens)
            self._wait(running, now + running.asked.reply_tokens * DECODE_S)
            return
        asked, lease = running.asked, running.lease
        kept: TokenIds = asked.reply if asked.stopped else asked.reply + running.request.closing
        end = running.prompt_tokens + tokens.count(kept)
        if end > lease.tokens_reserved:
            assert lease.grow(end), "a box of this size does not run out of pages for a reply"
            self._index.take_moves()
        lease.append(kept)
        self._commit(running, end)
        node = Node(instance=INSTANCE, number=lease.node, tokens=end)
        lease.release()
        if running.trace is not None:
            reason: FinishReason = "cancelled" if asked.stopped else "length"
            running.trace.ended(reason, asked.reply_tokens, kept)
            running.trace.released()
        self._day.answered(asked, now, asked.reply, node)

    def _commit(self, running: _Running, count: int) -> None:
        running.lease.commit(count)
        if running.trace is not None:
            running.trace.committed(count)


def _after(stretches: list[tuple[bytes, int]], first: int) -> list[tuple[bytes, int]]:
    """The stretches of what follows the first tokens."""
    rest = []
    for namespace, count in stretches:
        skipped = min(first, count)
        first -= skipped
        if count > skipped:
            rest.append((namespace, count - skipped))
    return rest
