"""The engine's step: takes requests, runs batches, gives out events. Never: sockets, threads, text.

One thread calls `submit`, `cancel`, `disconnect` and `step`; every `Generate` submitted gets exactly
one `Finished`. Committed are only tokens whose K/V were written, and after a prefill only when the
logits at its end, which depend on all of it, are finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine import answers
from appliance.engine.admission import RequestLimits, check_request, make_sequence
from appliance.engine.chunk import Chunk
from appliance.engine.counters import Counters, stats_values
from appliance.engine.endings import Endings
from appliance.engine.precedence import (
    gives_way,
    next_to_admit,
    preemption_victim,
    prefill_order,
    room_order,
)
from appliance.engine.queue_limits import AdmissionPace, full_queue
from appliance.engine.replies import Replies
from appliance.engine.runner import Runner
from appliance.engine.sampler import History, needs_history
from appliance.engine.scheduler import (
    StepBudget,
    is_worth_resuming,
    plan_step,
    tokens_to_reserve,
)
from appliance.engine.sequence import Sequence, State
from appliance.engine.sequence_set import SequenceSet
from appliance.engine.shares import TenantShares
from appliance.engine.step_cost import StepCost, shape_of
from appliance.engine.step_times import StepTimes
from appliance.engine.tiers import Tiers
from appliance.engine.trace import TraceWriter
from appliance.errors import (
    ApplianceError,
    InsufficientMemory,
    InvalidRequest,
    ShuttingDown,
    UnknownNode,
)
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import Frame, Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Bounds of the loop, checked against each other by `limits.py`.

    `waiting_per_tenant_max` None: as `waiting_max`. `step_ms_max` None: a few times what a step's
    decodes take alone (`scheduler.STEP_DECODE_TIMES`).
    """

    context_tokens_max: int
    running_max: int
    waiting_max: int
    step_tokens_max: int
    waiting_per_tenant_max: int | None = None
    step_ms_max: float | None = None


class EngineLoop:
    """The sequences of one engine. `send(connection, frame)` must not block."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        index: PrefixIndex,
        settings: LoopSettings,
        *,
        tiers: Tiers | None = None,
        instance: str,
        clock: Callable[[], float],
        send: Callable[[int, Frame], None],
        trace: TraceWriter | None = None,
        remember: Callable[[Sequence, int], None] = lambda _sequence, _written: None,
    ) -> None:
        """`tiers` keep what the index evicts; `instance` names this process in the nodes it gives out;
        `trace` records what requests do to the index; `remember` as in `Endings`."""
        self.counters = Counters()
        self._decoder = decoder
        self._runner = Runner(decoder, cache)
        self._index = index
        self._tiers = tiers or Tiers(index, cache)
        self._page_size = cache.page_size
        self._settings = settings
        self._limits = RequestLimits(
            vocab_size=decoder.config.vocab_size, context_tokens_max=settings.context_tokens_max
        )
        self._instance = instance
        self._clock = clock
        self._send = send
        self._trace = trace
        self._set = SequenceSet()
        self._shares = TenantShares()
        self._pace = AdmissionPace()
        self._step_cost = StepCost()
        self._step_times = StepTimes()
        self._endings = Endings(
            self._set, self.counters, instance=instance, send=send, remember=remember
        )
        self._replies = Replies(self._endings, self.counters, send=send)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs or closes: `step` would do nothing."""
        return self._set.is_empty

    @property
    def sequences(self) -> dict[State, tuple[Sequence, ...]]:
        """The sequences by state, for statistics and checks."""
        return self._set.by_state()

    def stats(self) -> dict[str, float]:
        """All gauges and counters by name."""
        return stats_values(
            self.counters,
            self.sequences,
            self._index.stats(),
            step_gauges=self._step_times.gauges,
            now=self._clock(),
        )

    def submit(self, connection: int, request: Generate) -> None:
        """Queue a request, or finish it as failed when it is not valid or the queue is full."""
        self.counters.submitted += 1
        key = (connection, request.request_id)
        try:
            if self._set.live(key) is not None:
                raise InvalidRequest("this request_id is already in use", param="request_id")
            check_request(request, self._limits)
            self._find_place(request)
        except ApplianceError as error:
            self._endings.refuse(connection, request.request_id, error)
            return
        now = self._clock()
        if self._set.count(State.WAITING) == 0:
            self._pace.queue_formed(now)
        self._shares.arrive(request.tenant, self._set.backlogged_tenants())
        self._set.arrivals += 1
        sequence = make_sequence(
            request,
            key=key,
            ordinal=self._set.arrivals,
            arrived_at=now,
            limits=self._limits,
            model_fingerprint=self._decoder.fingerprint,
        )
        if self._trace is not None:
            sequence.trace = self._trace.request(
                request, ordinal=sequence.ordinal, arrived_s=sequence.arrived_at
            )
        self._set.add(sequence)

    def _find_place(self, request: Generate) -> None:
        """Raises Overloaded when the queue is full for this request; may take a batch one's place."""
        settings = self._settings
        full = full_queue(
            self._set.waiting,
            request,
            waiting_max=settings.waiting_max,
            waiting_per_tenant_max=settings.waiting_per_tenant_max or settings.waiting_max,
            seconds_each=self._pace.seconds_each(self._clock()),
        )
        if full is None:
            return
        if full.loser is None:
            raise full.refusal
        self._endings.fail(full.loser, full.refusal)

    def cancel(self, connection: int, request_id: str, keep_tokens: int) -> None:
        """Stop a request and free its pages now; an unknown or finished one is left alone."""
        sequence = self._set.live((connection, request_id))
        if sequence is not None:
            kept = min(max(keep_tokens, 0), sequence.new_tokens)
            self._endings.cancel(sequence, commit=sequence.prompt_tokens + kept)

    def disconnect(self, connection: int) -> None:
        """Cancel all requests of a connection that is gone; how much was seen is not known."""
        for sequence in self._set.all_live():
            if sequence.key[0] == connection:
                self._endings.cancel(sequence, commit=sequence.prompt_tokens)

    def refuse_waiting(self) -> None:
        """Fail what waits, for a drain."""
        for sequence in self._set.waiting:
            self._endings.fail(sequence, ShuttingDown("the engine is shutting down"))

    def fail_all(self, error: ApplianceError) -> None:
        """Fail every request that is not finished, for the end of the process."""
        for sequence in self._set.all_live():
            self._endings.fail(sequence, error)

    def step(self) -> None:
        """Admit, run one batch, and send what came of it. Raises DeviceLost."""
        started_at = self._clock()
        self._expire(started_at)
        self._make_room()
        self._admit()
        chunks = self._plan()
        if not chunks:
            return
        self.counters.steps += 1
        shape = shape_of(chunks)
        running_at = self._clock()
        outcomes = self._runner.run(chunks)
        took_s = self._clock() - running_at
        sampled = iter(self._replies.sample(chunks, outcomes))
        self._step_cost.observe(shape, took_s)
        self._tiers.took_step(sum(chunk.count for chunk in chunks), took_s)
        self._shares.charge(chunks)
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            if isinstance(outcome, ApplianceError):
                self._endings.fail(chunk.sequence, outcome)
                continue
            chunk.sequence.computed += chunk.count
            if outcome is not None:
                self._replies.take(chunk.sequence, next(sampled))
            elif chunk.sequence.state is State.CLOSING:
                self._endings.close(chunk.sequence)
        self._step_times.note(self._clock() - started_at, decodes=shape.decodes)

    def _expire(self, now: float) -> None:
        """End what is past its deadline, before anything more is computed for it."""
        for sequence in self._set.all_live():
            if sequence.is_expired(now):
                self._endings.expire(sequence)

    def _plan(self) -> list[Chunk]:
        step_ms_max = self._settings.step_ms_max
        budget = StepBudget(
            tokens_max=self._settings.step_tokens_max,
            step_s_max=None if step_ms_max is None else step_ms_max / 1000,
            estimate=self._step_cost.estimate,
        )
        running = prefill_order(self._set.running, self._shares.served, step=self.counters.steps)
        return plan_step(self._set.closing, running, budget)

    def _make_room(self) -> None:
        """Give running sequences pages for the step, taking them from those that come last."""
        for sequence in room_order(self._set.running):
            while sequence.state is State.RUNNING:
                assert sequence.lease is not None
                needed = sequence.room_needed
                if needed <= sequence.lease.tokens_reserved:
                    break
                if sequence.lease.grow(needed):
                    self._tiers.carry_out()
                    break
                self._preempt(preemption_victim(self._set.running))

    def _preempt(self, sequence: Sequence) -> None:
        self.counters.preempted += 1
        sequence.lost_tokens = sequence.computed
        sequence.commit(sequence.computed)
        sequence.recall()
        sequence.release()
        self._set.move(sequence, State.WAITING)

    def _admit(self) -> None:
        """Start who is next as long as there is room, or someone gives way."""
        while True:
            running = self._set.running
            sequence = next_to_admit(
                self._set.waiting, self._set.closing, running, self._shares.served
            )
            if sequence is None:
                return
            if len(running) < self._settings.running_max and self._start(sequence):
                continue
            loser = gives_way(sequence, running)
            if loser is None:
                return
            self.counters.preempted_for_others += 1
            self._preempt(loser)

    def _start(self, sequence: Sequence) -> bool:
        """Run a waiting sequence if its pages can be had; False keeps those behind it waiting."""
        if sequence.lost_tokens is not None and not is_worth_resuming(
            sequence,
            running=self._set.count(State.RUNNING),
            pages_available=self._pages_available(),
            page_size=self._page_size,
        ):
            return False
        try:
            lease = self._lease(sequence)
        except UnknownNode as error:
            self._endings.fail(sequence, error)
            return True
        if lease is None:
            if self._set.running or self._set.closing:
                return False
            no_room = InsufficientMemory("the cache has no room for this request")
            self._endings.fail(sequence, no_room)
            return True
        # Before anything is written into its pages: pages that were evicted for it go, restored ones
        # come. Then the copy, for a later admission or growth may take its source.
        self._tiers.settle(lease)
        if lease.copy is not None:
            self._runner.copy_rows(lease.copy)
        sequence.hold(lease)
        if sequence.computed < sequence.first:
            sequence.recall()
        if sequence.history is None and needs_history(sequence.request.sampling):
            sequence.history = self._history(sequence)
        self._set.move(sequence, State.RUNNING)
        self._announce(sequence, lease.hit_tokens)
        return True

    def _lease(self, sequence: Sequence) -> Lease | None:
        """Pages for a waiting sequence; None when they cannot be had. Raises UnknownNode."""
        after = None
        if sequence.first > 0:
            node = sequence.request.after
            assert node is not None
            if (
                node.instance != self._instance
                or self._index.node_tokens(node.number) != node.tokens
            ):
                raise UnknownNode("the engine does not have this node")
            after = node.number
        return self._index.admit(
            sequence.tokens.tobytes(),
            sequence.path_stretches,
            tokens_to_reserve(sequence),
            after=after,
            conversation=sequence.request.conversation,
            resumes=sequence.lost_tokens is not None,
            onload_tokens_min=self._tiers.onload_tokens_min(),
        )

    def _history(self, sequence: Sequence) -> History:
        assert sequence.lease is not None
        return History(
            tokens.unpack(sequence.lease.token_ids()),
            vocab_size=self._limits.vocab_size,
            device=self._decoder.device,
        )

    def _announce(self, sequence: Sequence, hit_tokens: int) -> None:
        """Tell the server of an admission, the first time; later ones only resume."""
        if sequence.lost_tokens is not None:
            self.counters.recomputed_tokens += max(sequence.lost_tokens - hit_tokens, 0)
            sequence.lost_tokens = None
        if sequence.announced:
            return
        sequence.announced = True
        now = self._clock()
        self._pace.admitted(now)
        self.counters.admitted += 1
        self.counters.prompt_tokens += sequence.prompt_tokens
        self.counters.prefix_hit_tokens += hit_tokens
        wait_ms = (now - sequence.arrived_at) * 1000
        event = answers.admitted(sequence, hit_tokens=hit_tokens, queue_wait_ms=wait_ms)
        self._send(sequence.key[0], event)

    def _pages_available(self) -> int:
        pages = self._index.stats()
        return pages["pages_free"] + pages["pages_evictable"]
