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
from appliance.engine.counters import Counters
from appliance.engine.endings import Endings
from appliance.engine.replies import Replies
from appliance.engine.runner import Runner
from appliance.engine.sampler import History, needs_history
from appliance.engine.scheduler import (
    admission_order,
    is_worth_resuming,
    plan_step,
    preemption_victim,
    tokens_to_reserve,
)
from appliance.engine.sequence import Sequence, State
from appliance.engine.sequence_set import SequenceSet
from appliance.errors import (
    ApplianceError,
    InsufficientMemory,
    InvalidRequest,
    Overloaded,
    ShuttingDown,
    UnknownNode,
)
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import Frame, Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Bounds of the loop, checked against each other by `limits.py`."""

    context_tokens_max: int
    running_max: int
    waiting_max: int
    step_tokens_max: int


class EngineLoop:
    """The sequences of one engine. `send(connection, frame)` must not block."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        index: PrefixIndex,
        settings: LoopSettings,
        *,
        instance: str,
        clock: Callable[[], float],
        send: Callable[[int, Frame], None],
    ) -> None:
        """`instance` names this process in the nodes it gives out."""
        self.counters = Counters()
        self._decoder = decoder
        self._runner = Runner(decoder, cache)
        self._index = index
        self._page_size = cache.page_size
        self._settings = settings
        self._limits = RequestLimits(
            vocab_size=decoder.config.vocab_size, context_tokens_max=settings.context_tokens_max
        )
        self._instance = instance
        self._clock = clock
        self._send = send
        self._set = SequenceSet()
        self._endings = Endings(self._set, self.counters, instance=instance, send=send)
        self._replies = Replies(self._endings, self.counters, send=send)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs or closes: `step` would do nothing."""
        return self._set.is_empty

    @property
    def sequences(self) -> dict[State, tuple[Sequence, ...]]:
        """The sequences by state, for statistics and checks."""
        return self._set.by_state()

    def submit(self, connection: int, request: Generate) -> None:
        """Queue a request, or finish it as failed when it is not valid or the queue is full."""
        self.counters.submitted += 1
        key = (connection, request.request_id)
        try:
            if self._set.live(key) is not None:
                raise InvalidRequest("this request_id is already in use", param="request_id")
            check_request(request, self._limits)
            waiting = self._set.count(State.WAITING)
            if waiting >= self._settings.waiting_max:
                raise Overloaded(f"{waiting} requests are waiting already")
        except ApplianceError as error:
            self._endings.refuse(connection, request.request_id, error)
            return
        self._set.arrivals += 1
        sequence = make_sequence(
            request,
            key=key,
            ordinal=self._set.arrivals,
            arrived_at=self._clock(),
            limits=self._limits,
            model_fingerprint=self._decoder.fingerprint,
        )
        self._set.add(sequence)

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
        self._make_room()
        self._admit()
        chunks = plan_step(self._set.closing, self._set.running, self._settings.step_tokens_max)
        if not chunks:
            return
        self.counters.steps += 1
        outcomes = self._runner.run(chunks)
        sampled = iter(self._replies.sample(chunks, outcomes))
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            if isinstance(outcome, ApplianceError):
                self._endings.fail(chunk.sequence, outcome)
                continue
            chunk.sequence.computed += chunk.count
            if outcome is not None:
                self._replies.take(chunk.sequence, next(sampled))
            elif chunk.sequence.state is State.CLOSING:
                self._endings.close(chunk.sequence)

    def _make_room(self) -> None:
        """Give running sequences pages for the step, oldest first, taking them from the youngest."""
        for sequence in sorted(self._set.running, key=lambda sequence: sequence.ordinal):
            while sequence.state is State.RUNNING:
                assert sequence.lease is not None
                needed = sequence.room_needed
                if needed <= sequence.lease.tokens_reserved or sequence.lease.grow(needed):
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
        for sequence in admission_order(self._set.waiting, self._set.closing):
            if self._set.count(State.RUNNING) >= self._settings.running_max:
                break
            if not self._start(sequence):
                break

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
        # Before anything else: a later admission or growth may take the source page.
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
        self.counters.admitted += 1
        self.counters.prompt_tokens += sequence.prompt_tokens
        self.counters.prefix_hit_tokens += hit_tokens
        wait_ms = (self._clock() - sequence.arrived_at) * 1000
        event = answers.admitted(sequence, hit_tokens=hit_tokens, queue_wait_ms=wait_ms)
        self._send(sequence.key[0], event)

    def _pages_available(self) -> int:
        pages = self._index.stats()
        return pages["pages_free"] + pages["pages_evictable"]
