"""Ends sequences: each submitted request gets exactly one `Finished`. Never: decides that one ends.

What stays cached of an ended sequence is settled here, and so is which counter it goes to.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.engine import answers
from appliance.engine.counters import Counters
from appliance.engine.sequence import Sequence, State
from appliance.engine.sequence_set import SequenceSet
from appliance.errors import ApplianceError, DeadlineExceeded, Overloaded, UnknownNode
from appliance.wire.frames import FinishReason, Frame, Node


class Endings:
    """The ways in which a request ends. `instance` names this process in the nodes it gives out."""

    def __init__(
        self,
        sequences: SequenceSet,
        counters: Counters,
        *,
        instance: str,
        send: Callable[[int, Frame], None],
        remember: Callable[[Sequence, int], None],
    ) -> None:
        """`remember` is told of each sequence that leaves tokens cached, while it still has its lease,
        and of how many."""
        self._sequences = sequences
        self._counters = counters
        self._instance = instance
        self._send = send
        self._remember = remember

    def refuse(self, connection: int, request_id: str, error: ApplianceError) -> None:
        """A request that never becomes a sequence."""
        self._counters.refused += 1
        self._send(connection, answers.refused(request_id, error))

    def complete(self, sequence: Sequence, reason: FinishReason) -> None:
        """The reply is complete: say so now, write the K/V still missing in the next step."""
        self._counters.finished += 1
        sequence.tokens.frombytes(sequence.closing)
        self._tell(sequence, reason, node=self._node(sequence, sequence.length))
        self._sequences.move(sequence, State.CLOSING)
        sequence.arrivals_before_end = self._sequences.arrivals
        self.close(sequence)

    def close(self, sequence: Sequence) -> None:
        """Commit and release a closing sequence once all its K/V are written."""
        if sequence.pending_tokens == 0:
            self._leave(sequence, commit=sequence.length)

    def cancel(self, sequence: Sequence, *, commit: int) -> None:
        """End a waiting or running sequence at once; its first `commit` tokens stay cached."""
        node, kept = None, 0
        if sequence.state is State.RUNNING:
            kept = min(commit, sequence.computed)
            node = self._node(sequence, kept)
        self._counters.cancelled += 1
        self._tell(sequence, "cancelled", node=node)
        self._leave(sequence, commit=kept)

    def fail(self, sequence: Sequence, error: ApplianceError) -> None:
        """End a sequence by a failure; what this step was to write is not kept."""
        if sequence.state is State.CLOSING:
            # Its Finished is out; only what was written before this step is kept.
            self._leave(sequence, commit=sequence.computed)
            return
        self._count(error)
        self._tell(sequence, "failed", error=error)
        self._leave(sequence, commit=0)

    def expire(self, sequence: Sequence) -> None:
        """End a live sequence whose deadline is over; its prompt, as far as computed, stays cached."""
        error = DeadlineExceeded(
            f"the request did not finish within its deadline of {sequence.request.deadline_ms} ms"
        )
        self._count(error)
        self._tell(sequence, "failed", error=error)
        is_running = sequence.state is State.RUNNING
        self._leave(sequence, commit=sequence.prompt_tokens if is_running else 0)

    def _count(self, error: ApplianceError) -> None:
        if isinstance(error, DeadlineExceeded):
            self._counters.deadline_exceeded += 1
        elif isinstance(error, UnknownNode):
            self._counters.unknown_node += 1
        elif isinstance(error, Overloaded):
            self._counters.refused += 1
        else:
            self._counters.failed += 1

    def _leave(self, sequence: Sequence, *, commit: int) -> None:
        if commit > 0:
            sequence.commit(commit)
            self._remember(sequence, min(commit, sequence.computed))
        sequence.release()
        self._sequences.drop(sequence)

    def _tell(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        node: Node | None = None,
        error: ApplianceError | None = None,
    ) -> None:
        self._sequences.finish(sequence)
        if sequence.trace is not None:
            reply = sequence.ids(sequence.prompt_tokens, sequence.length).tobytes()
            sequence.trace.ended(reason, sequence.new_tokens, reply)
        self._send(sequence.key[0], answers.finished(sequence, reason, node=node, error=error))

    def _node(self, sequence: Sequence, tokens: int) -> Node | None:
        """Where this sequence leaves off, with that many tokens committed by its end."""
        assert sequence.lease is not None
        if tokens == 0:
            return None
        return Node(instance=self._instance, number=sequence.lease.node, tokens=tokens)
