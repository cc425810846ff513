"""The engine's step: takes requests, runs batches, gives out events. Never: sockets, threads, text.

One thread calls `submit`, `cancel`, `disconnect` and `step`; every `Generate` submitted gets exactly
one `Finished`. Committed are only tokens whose K/V were written, and after a prefill only when the
logits at its end, which depend on all of it, are finite.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine import answers
from appliance.engine.admission import RequestLimits, check_request, make_sequence
from appliance.engine.counters import Counters
from appliance.engine.runner import Outcome, Runner
from appliance.engine.sampler import Choice, History, Sampled, needs_history, sample
from appliance.engine.scheduler import (
    Chunk,
    admission_order,
    is_worth_resuming,
    plan_step,
    preemption_victim,
    tokens_to_reserve,
)
from appliance.engine.sequence import RequestKey, Sequence, State
from appliance.errors import (
    ApplianceError,
    GenerationFailed,
    InsufficientMemory,
    InvalidRequest,
    Overloaded,
    ShuttingDown,
    UnknownNode,
)
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.wire.frames import FinishReason, Frame, Generate, Node, Tokens

log = logging.getLogger("appliance.engine")


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
        remember: Callable[[Sequence, int], None] = lambda _sequence, _written: None,
    ) -> None:
        """`instance` names this process in the nodes it gives out; `remember` is told of a sequence that
        ends, while it has its lease, and of how many of its tokens are committed."""
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
        self._remember = remember
        self._arrivals = 0
        self._live: dict[RequestKey, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._closing: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs or closes: `step` would do nothing."""
        return not (self._waiting or self._running or self._closing)

    @property
    def sequences(self) -> dict[State, tuple[Sequence, ...]]:
        """The sequences by state, for statistics and checks."""
        return {
            State.WAITING: tuple(self._waiting),
            State.RUNNING: tuple(self._running),
            State.CLOSING: tuple(self._closing),
        }

    def submit(self, connection: int, request: Generate) -> None:
        """Queue a request, or finish it as failed when it is not valid or the queue is full."""
        self.counters.submitted += 1
        key = (connection, request.request_id)
        try:
            if key in self._live:
                raise InvalidRequest("this request_id is already in use", param="request_id")
            check_request(request, self._limits)
            if len(self._waiting) >= self._settings.waiting_max:
                raise Overloaded(f"{len(self._waiting)} requests are waiting already")
        except ApplianceError as error:
            self._refuse(connection, request.request_id, error)
            return
        self._arrivals += 1
        sequence = make_sequence(
            request,
            key=key,
            ordinal=self._arrivals,
            arrived_at=self._clock(),
            limits=self._limits,
            model_fingerprint=self._decoder.fingerprint,
        )
        self._live[key] = sequence
        self._waiting.append(sequence)

    def cancel(self, connection: int, request_id: str, keep_tokens: int) -> None:
        """Stop a request and free its pages now; an unknown or finished one is left alone."""
        sequence = self._live.get((connection, request_id))
        if sequence is not None:
            kept = min(max(keep_tokens, 0), sequence.new_tokens)
            self._end(sequence, "cancelled", commit=sequence.prompt_tokens + kept)

    def disconnect(self, connection: int) -> None:
        """Cancel all requests of a connection that is gone; how much was seen is not known."""
        for sequence in [s for s in self._live.values() if s.key[0] == connection]:
            self._end(sequence, "cancelled", commit=sequence.prompt_tokens)

    def refuse_waiting(self) -> None:
        """Fail what waits, for a drain."""
        for sequence in list(self._waiting):
            self._fail(sequence, ShuttingDown("the engine is shutting down"))

    def fail_all(self, error: ApplianceError) -> None:
        """Fail every request that is not finished, for the end of the process."""
        for sequence in list(self._live.values()):
            self._fail(sequence, error)

    def step(self) -> None:
        """Admit, run one batch, and send what came of it. Raises DeviceLost."""
        self._make_room()
        self._admit()
        chunks = plan_step(self._closing, self._running, self._settings.step_tokens_max)
        if not chunks:
            return
        self.counters.steps += 1
        outcomes = self._runner.run(chunks)
        sampled = iter(self._sample(chunks, outcomes))
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            if isinstance(outcome, ApplianceError):
                self._fail(chunk.sequence, outcome)
                continue
            chunk.sequence.computed += chunk.count
            if outcome is not None:
                self._take(chunk.sequence, next(sampled))
            elif chunk.sequence.state is State.CLOSING:
                self._close(chunk.sequence)

    def _make_room(self) -> None:
        """Give running sequences pages for the step, oldest first, taking them from the youngest."""
        for sequence in sorted(self._running, key=lambda sequence: sequence.ordinal):
            while sequence.state is State.RUNNING:
                assert sequence.lease is not None
                needed = sequence.room_needed
                if needed <= sequence.lease.tokens_reserved or sequence.lease.grow(needed):
                    break
                self._preempt(preemption_victim(self._running))

    def _preempt(self, sequence: Sequence) -> None:
        self.counters.preempted += 1
        sequence.lost_tokens = sequence.computed
        sequence.commit(sequence.computed)
        sequence.recall()
        sequence.release()
        sequence.state = State.WAITING
        self._running.remove(sequence)
        self._waiting.append(sequence)

    def _admit(self) -> None:
        for sequence in admission_order(self._waiting, self._closing):
            if len(self._running) >= self._settings.running_max or not self._start(sequence):
                break

    def _start(self, sequence: Sequence) -> bool:
        """Run a waiting sequence if its pages can be had; False keeps those behind it waiting."""
        if sequence.lost_tokens is not None and not is_worth_resuming(
            sequence,
            running=len(self._running),
            pages_available=self._pages_available(),
            page_size=self._page_size,
        ):
            return False
        try:
            lease = self._lease(sequence)
        except UnknownNode as error:
            self._fail(sequence, error)
            return True
        if lease is None:
            if self._running or self._closing:
                return False
            self._fail(sequence, InsufficientMemory("the cache has no room for this request"))
            return True
        # Before anything else: a later admission or growth may take the source page.
        if lease.copy is not None:
            self._runner.copy_rows(lease.copy)
        sequence.hold(lease)
        if sequence.computed < sequence.first:
            sequence.recall()
        if sequence.history is None and needs_history(sequence.request.sampling):
            sequence.history = self._history(sequence)
        sequence.state = State.RUNNING
        self._waiting.remove(sequence)
        self._running.append(sequence)
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

    def _sample(self, chunks: Iterable[Chunk], outcomes: list[Outcome]) -> list[Sampled | None]:
        """The next token of each chunk that has logits, in order; None where they are not finite."""
        rows, choices = [], []
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            if outcome is None or isinstance(outcome, ApplianceError):
                continue
            rows.append(outcome)
            choices.append(
                Choice(
                    sampling=chunk.sequence.request.sampling,
                    seed=chunk.sequence.seed,
                    position=chunk.sequence.length,
                    history=chunk.sequence.history,
                )
            )
        return sample(rows, choices)

    def _take(self, sequence: Sequence, sampled: Sampled | None) -> None:
        """Append a sampled token, or end the reply."""
        if sampled is None:
            log.error("logits_not_finite", extra={"request_id": sequence.key[1]})
            self._fail(sequence, GenerationFailed("the model gave no finite logits"))
            return
        if sequence.new_tokens == 0:
            sequence.commit(sequence.prompt_tokens)
        if sampled.token_id in sequence.stop_token_ids:
            self._finish(sequence, "stop")
            return
        sequence.tokens.append(sampled.token_id)
        sequence.new_tokens += 1
        self.counters.new_tokens += 1
        if sequence.history is not None:
            sequence.history.add(sampled.token_id)
        connection, request_id = sequence.key
        event = Tokens(
            request_id=request_id,
            token_ids=tokens.pack([sampled.token_id]),
            logprobs=None if sampled.logprobs is None else [sampled.logprobs],
        )
        self._send(connection, event)
        if sequence.new_tokens >= sequence.request.new_tokens_max:
            self._finish(sequence, "length")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """The reply is complete: say so now, write the K/V still missing in the next step."""
        self.counters.finished += 1
        sequence.tokens.frombytes(sequence.closing)
        self._tell_finished(sequence, reason, node=self._node(sequence, sequence.length))
        sequence.state = State.CLOSING
        sequence.arrivals_before_end = self._arrivals
        self._running.remove(sequence)
        self._closing.append(sequence)
        self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        """Commit and release a closing sequence once all its K/V are written."""
        if sequence.pending_tokens == 0:
            sequence.commit(sequence.length)
            self._remember(sequence, sequence.length)
            sequence.release()
            self._closing.remove(sequence)

    def _fail(self, sequence: Sequence, error: ApplianceError) -> None:
        if sequence.state is State.CLOSING:
            # Its Finished is out; only what was written before this step is kept.
            sequence.commit(sequence.computed)
            sequence.release()
            self._closing.remove(sequence)
            return
        self._end(sequence, "failed", commit=0, error=error)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        commit: int,
        error: ApplianceError | None = None,
    ) -> None:
        """End a waiting or running sequence at once; its first `commit` tokens stay cached."""
        node = None
        if sequence.state is State.RUNNING:
            sequence.commit(commit)
            self._remember(sequence, min(commit, sequence.computed))
            node = self._node(sequence, min(commit, sequence.computed))
            sequence.release()
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        if error is None:
            self.counters.cancelled += 1
        else:
            self.counters.failed += 1
        self._tell_finished(sequence, reason, error, node=node)

    def _node(self, sequence: Sequence, tokens: int) -> Node | None:
        """Where this sequence leaves off, with that many tokens committed by its end."""
        assert sequence.lease is not None
        if tokens == 0:
            return None
        return Node(instance=self._instance, number=sequence.lease.node, tokens=tokens)

    def _tell_finished(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: ApplianceError | None = None,
        *,
        node: Node | None = None,
    ) -> None:
        del self._live[sequence.key]
        self._send(sequence.key[0], answers.finished(sequence, reason, node=node, error=error))

    def _refuse(self, connection: int, request_id: str, error: ApplianceError) -> None:
        self.counters.refused += 1
        self._send(connection, answers.refused(request_id, error))

    def _pages_available(self) -> int:
        pages = self._index.stats()
        return pages["pages_free"] + pages["pages_evictable"]
