"""All sequences of one engine by state, and the moves between states. Never: decides, computes, sends.

A sequence is live until its `Finished` is sent; a closing one is not live any more and still here.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.engine.sequence import RequestKey, Sequence, State


class SequenceSet:
    """Owns who waits, runs and closes. `arrivals` counts those that were ever added."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._live: dict[RequestKey, Sequence] = {}
        self._members: dict[State, list[Sequence]] = {state: [] for state in State}

    @property
    def waiting(self) -> list[Sequence]:
        """A copy: waiting sequences, fresh and preempted."""
        return list(self._members[State.WAITING])

    @property
    def running(self) -> list[Sequence]:
        """A copy: sequences with pages whose reply goes on."""
        return list(self._members[State.RUNNING])

    @property
    def closing(self) -> list[Sequence]:
        """A copy: sequences whose reply has ended and whose last K/V are not written yet."""
        return list(self._members[State.CLOSING])

    @property
    def is_empty(self) -> bool:
        """Nothing waits, runs or closes."""
        return not any(self._members.values())

    def count(self, state: State) -> int:
        """How many sequences are in a state."""
        return len(self._members[state])

    def backlogged_tenants(self) -> set[bytes]:
        """The tenants with a prompt that waits or is not computed yet."""
        prefilling = (s for s in self._members[State.RUNNING] if s.pending_tokens > 1)
        return {sequence.tenant for sequence in (*self._members[State.WAITING], *prefilling)}

    def by_state(self) -> dict[State, tuple[Sequence, ...]]:
        """The sequences by state, for statistics and checks."""
        return {state: tuple(members) for state, members in self._members.items()}

    def live(self, key: RequestKey) -> Sequence | None:
        """The sequence of a request that is not finished."""
        return self._live.get(key)

    def all_live(self) -> Iterator[Sequence]:
        """Every sequence whose `Finished` is to come; safe against changes meanwhile."""
        return iter(list(self._live.values()))

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        assert sequence.key not in self._live
        assert sequence.state is State.WAITING
        self._live[sequence.key] = sequence
        self._members[State.WAITING].append(sequence)

    def move(self, sequence: Sequence, state: State) -> None:
        """Put a sequence into another state."""
        self._members[sequence.state].remove(sequence)
        sequence.state = state
        self._members[state].append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Its `Finished` is on its way; the request's key is free again."""
        del self._live[sequence.key]

    def drop(self, sequence: Sequence) -> None:
        """A finished sequence that holds no pages is gone."""
        assert self._live.get(sequence.key) is not sequence
        self._members[sequence.state].remove(sequence)
