"""The state of one request inside the engine. Never: decides what runs, or touches a tensor."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from appliance import tokens
from appliance._core import Lease
from appliance.engine.sampler import History
from appliance.engine.stretches import Stretch, of_positions
from appliance.engine.trace import RequestTrace
from appliance.tokens import TokenIds
from appliance.wire.frames import Generate

RequestKey = tuple[int, str]
"""(connection, request id): ids are unique within one server connection only."""


class State(enum.Enum):
    """Where a sequence stands; a finished one is dropped."""

    WAITING = "waiting"
    RUNNING = "running"
    CLOSING = "closing"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request on its way: its tokens, how many of them have K/V, and its hold on pages.

    `tokens` are, from position `first` on, the prompt, the reply and, once closing, the closing
    tokens; those before `first` only the index has. K/V of positions `[0, computed)` are written in
    the leased pages. `ordinal` counts arrivals: the youngest has the highest. `arrivals_before_end`:
    how many had arrived when its reply ended. `lost_tokens`: how many tokens had K/V when the sequence
    was preempted, until it runs again.
    """

    key: RequestKey
    request: Generate
    stretches: list[Stretch]
    closing: TokenIds
    seed: int
    ordinal: int
    arrived_at: float
    tokens: array[int]
    first: int
    prompt_tokens: int
    stop_token_ids: frozenset[int]
    history: History | None = None
    state: State = State.WAITING
    lease: Lease | None = None
    computed: int = 0
    new_tokens: int = 0
    announced: bool = False
    arrivals_before_end: int | None = None
    lost_tokens: int | None = None
    trace: RequestTrace | None = None

    @property
    def tenant(self) -> bytes:
        """Who sent the request."""
        return self.request.tenant

    @property
    def is_batch(self) -> bool:
        """Nobody waits for the reply: everybody else goes first."""
        return self.request.priority == "batch"

    def is_expired(self, now: float) -> bool:
        """Whether the request's deadline is over."""
        deadline_ms = self.request.deadline_ms
        return deadline_ms is not None and now >= self.arrived_at + deadline_ms / 1000

    @property
    def length(self) -> int:
        """Positions of all tokens so far."""
        return self.first + len(self.tokens)

    @property
    def pending_tokens(self) -> int:
        """Tokens whose K/V are still to be computed."""
        return self.length - self.computed

    def ids(self, start: int, stop: int) -> array[int]:
        """The tokens of positions `[start, stop)`, none of them before `first`."""
        assert start >= self.first
        return self.tokens[start - self.first : stop - self.first]

    @property
    def room_needed(self) -> int:
        """Positions to hold before the next step: all tokens, one sampled, and the closing ones.

        The closing tokens are counted from the start, so that closing can never lack a page.
        """
        if self.state is State.CLOSING:
            return self.length
        return self.length + 1 + tokens.count(self.closing)

    @property
    def path_stretches(self) -> list[Stretch]:
        """The stretches of `tokens`: a reply goes on under the prompt's last namespace."""
        return of_positions(self.stretches, self.first, self.prompt_tokens + self.new_tokens)

    def hold(self, lease: Lease) -> None:
        """Go on in these pages, from the end of what was found in the cache."""
        self.lease = lease
        self.computed = lease.hit_tokens
        if self.trace is not None:
            self.trace.admitted(lease)

    def recall(self) -> None:
        """Get the tokens before `first` from the lease: O(prompt)."""
        if self.first > 0:
            assert self.lease is not None
            known = array("I", tokens.unpack(tokens.head(self.lease.token_ids(), self.first)))
            self.tokens = known + self.tokens
            self.first = 0

    def release(self) -> None:
        """Give the pages back; what was committed stays cached."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None
            if self.trace is not None:
                self.trace.released()
        self.computed = 0

    def commit(self, count: int) -> None:
        """Put the first `count` tokens, at most those with K/V, into the index. O(new tokens)."""
        assert self.lease is not None
        written = min(count, self.computed)
        known = self.lease.tokens
        if written > known:
            self.lease.append(self.ids(known, written).tobytes())
        if written > 0:
            self.lease.commit(written)
            if self.trace is not None:
                self.trace.committed(written)
