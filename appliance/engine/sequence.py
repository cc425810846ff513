"""The state of one request inside the engine. Never: decides what runs, or touches a tensor."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from appliance import tokens
from appliance._core import Lease
from appliance.engine.sampler import History
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

    `tokens` are the prompt, the reply and, once closing, the closing tokens. K/V of positions
    `[0, computed)` are written in the leased pages. `ordinal` counts arrivals: the youngest has the
    highest. `arrivals_before_end`: how many had arrived when its reply ended. `lost_tokens`: how many
    tokens had K/V when the sequence was preempted, until it runs again.
    """

    key: RequestKey
    request: Generate
    stretches: list[tuple[bytes, int]]
    closing: TokenIds
    seed: int
    ordinal: int
    arrived_at: float
    tokens: array[int]
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

    @property
    def pending_tokens(self) -> int:
        """Tokens whose K/V are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def room_needed(self) -> int:
        """Positions to hold before the next step: all tokens, one sampled, and the closing ones.

        The closing tokens are counted from the start, so that closing can never lack a page.
        """
        if self.state is State.CLOSING:
            return len(self.tokens)
        return len(self.tokens) + 1 + tokens.count(self.closing)

    @property
    def path_stretches(self) -> list[tuple[bytes, int]]:
        """The stretches of all tokens so far: a reply goes on under the prompt's last namespace."""
        namespace, count = self.stretches[-1]
        return [*self.stretches[:-1], (namespace, count + self.new_tokens)]

    def release(self) -> None:
        """Give the pages back; what was committed stays cached."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        self.computed = 0

    def commit(self, count: int) -> None:
        """Put the first `count` tokens, at most those with K/V, into the index."""
        assert self.lease is not None
        written = min(count, self.computed)
        if written > 0:
            known = self.lease.tokens
            if written > known:
                self.lease.append(self.tokens[known:written].tobytes())
            self.lease.commit(written)
