"""Plays a recorded trace on a prefix index of other sizes: what would be found. Never: K/V, a clock.

The index is the engine's own, and the recorded order of admissions, commits and releases is kept, so
with the recorded sizes the outcome is the recorded one (but for ties: where pages of two branches match
alike, the index takes the one with the lower ids, and ids are hidden). With others it is a prediction: a
request for which there are no pages waits for the next release, those behind it wait too, and what it
had done meanwhile it does at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine.stretches import of_positions
from appliance.engine.trace_file import Deed, Mark, Request
from appliance.tokens import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of an index: pages on the device, slots of the lower tiers, all of `page_size` tokens."""

    page_size: int
    pages: int
    host_slots: int
    disk_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the index is asked.

    `restores`: whether lower tiers are restored from, from one page on (an engine may ask for a few
    more, by its measured costs). `names_conversations`: whether requests say which conversation they
    belong to, so that superseded branches are evicted before live ones.
    """

    restores: bool = True
    names_conversations: bool = True


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was found, in tokens and pages.

    `requests` and their `prompt_tokens` and `hit_tokens` count first admissions. `delayed` requests had
    to wait for pages where the recorded ones did not, `refused` ones never fit, and `shortened` ones
    could not keep all of their reply; `orphans` go on from a request that is not in the trace, and are
    left out.
    """

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    delayed: int = 0
    refused: int = 0
    shortened: int = 0
    orphans: int = 0
    evicted_pages: int = 0
    offloaded_pages: int = 0
    dropped_pages: int = 0
    onloaded_tokens: int = 0

    @property
    def hit_ratio(self) -> float:
        """Of all prompt tokens, those found; 0 without any."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @classmethod
    def of_all(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """The sums."""
        total = cls()
        for outcome in outcomes:
            for name, value in asdict(outcome).items():
                setattr(total, name, getattr(total, name) + value)
        return total


@dataclass(slots=True, kw_only=True, eq=False)
class _Played:
    """A request on its way through the replay. `late` are deeds it could not do yet."""

    request: Request
    parent: _Played | None
    lease: Lease | None = None
    node: int | None = None
    committed: int = 0
    announced: bool = False
    late: deque[Mark] | None = None
    is_out: bool = False


class Replay:
    """One pass over the requests of one section: `run` it once."""

    def __init__(self, sizes: Sizes, policy: Policy) -> None:
        """Raises ValueError for sizes that no index has."""
        self._sizes = sizes
        self._policy = policy
        self._outcome = Outcome()
        self._index = PrefixIndex(
            page_size=sizes.page_size,
            pages=sizes.pages,
            host_slots=sizes.host_slots,
            disk_slots=sizes.disk_slots,
        )
        self._delayed: deque[_Played] = deque()
        self._holders = 0

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Play them all; the index is checked at the end."""
        for played, mark in _deeds(requests, self._outcome):
            if played.is_out:
                continue
            if played.late is not None:
                played.late.append(mark)
                continue
            if (self._delayed and mark.deed is Deed.ADMIT) or not self._do(played, mark):
                self._outcome.delayed += 1
                self._delay(played, deque([mark]))
                self._admit_delayed()
            elif mark.deed is Deed.RELEASE:
                self._admit_delayed()
        assert not self._delayed
        self._index.check()
        stats = self._index.stats()
        outcome = self._outcome
        outcome.evicted_pages = stats["evicted_pages"]
        outcome.offloaded_pages = stats["offloaded_pages"]
        outcome.dropped_pages = stats["dropped_pages"]
        outcome.onloaded_tokens = stats["onloaded_tokens"]
        return outcome

    def _do(self, played: _Played, mark: Mark) -> bool:
        """One deed; False for an admission whose pages cannot be had."""
        if mark.deed is Deed.ADMIT:
            return self._admit(played, mark)
        if mark.deed is Deed.COMMIT:
            self._commit(played, mark.tokens)
        else:
            self._release(played)
        return True

    def _delay(self, played: _Played, late: deque[Mark]) -> None:
        played.late = late
        self._delayed.append(played)

    def _admit_delayed(self) -> None:
        """Admit those that wait, in order, while pages last; each then does what it could not."""
        while self._delayed:
            played = self._delayed[0]
            late = played.late
            assert late
            if not self._do(played, late[0]):
                if self._holders > 0:
                    return
                self._refuse(played)
                continue
            self._delayed.popleft()
            played.late = None
            late.popleft()
            while late and self._do(played, late[0]):
                late.popleft()
            if late:
                self._delay(played, late)

    def _refuse(self, played: _Played) -> None:
        self._delayed.popleft()
        played.is_out = True
        self._outcome.refused += 1
        self._announce(played, 0)

    def _admit(self, played: _Played, mark: Mark) -> bool:
        """Take pages; False when they cannot be had."""
        request = played.request
        sizes = self._sizes
        if max(mark.reserved, mark.tokens) > sizes.pages * sizes.page_size:
            return False
        after = self._known(played) if mark.tokens == request.prompt_tokens else None
        token_ids = request.token_ids if after is not None else _path(played, mark.tokens)
        first = mark.tokens - tokens.count(token_ids)
        lease = self._index.admit(
            token_ids,
            of_positions(request.stretches, first, mark.tokens),
            max(mark.reserved, mark.tokens),
            after=after,
            conversation=request.conversation if self._policy.names_conversations else b"",
            resumes=played.announced,
            onload_tokens_min=0 if self._policy.restores else None,
        )
        if lease is None:
            return False
        self._index.take_moves()
        if lease.onloaded_tokens:
            lease.commit(lease.hit_tokens)
        self._holders += 1
        played.lease = lease
        played.committed = 0
        self._announce(played, lease.hit_tokens)
        return True

    def _known(self, played: _Played) -> int | None:
        """The node to go on from, if this index has it."""
        parent, after = played.parent, played.request.after
        if parent is None or after is None or parent.node is None:
            return None
        return parent.node if self._index.node_tokens(parent.node) == after[1] else None

    def _announce(self, played: _Played, hit_tokens: int) -> None:
        if not played.announced:
            played.announced = True
            self._outcome.requests += 1
            self._outcome.prompt_tokens += played.request.prompt_tokens
            self._outcome.hit_tokens += hit_tokens

    def _commit(self, played: _Played, count: int) -> None:
        lease = played.lease
        assert lease is not None
        if count > lease.tokens_reserved and not lease.grow(count):
            # An engine would preempt and resume; what it then has in the end is more than this.
            count = lease.tokens_reserved
            self._outcome.shortened += 1
        self._index.take_moves()
        if count > lease.tokens:
            lease.append(_own(played.request, lease.tokens, count))
        lease.commit(count)
        played.committed = count

    def _release(self, played: _Played) -> None:
        lease = played.lease
        assert lease is not None
        played.node = lease.node if played.committed else None
        lease.release()
        played.lease = None
        self._holders -= 1


def _deeds(requests: Sequence[Request], outcome: Outcome) -> Iterator[tuple[_Played, Mark]]:
    """All deeds in the recorded order, without those of requests whose tokens are not all known."""
    deeds = sorted(
        ((mark, request) for request in requests for mark in request.marks),
        key=lambda pair: pair[0].order,
    )
    known: dict[int, _Played | None] = {}
    for mark, request in deeds:
        if request.node not in known:
            parent = None if request.after is None else known.get(request.after[0])
            is_whole = request.after is None or (
                parent is not None and request.first <= parent.request.length
            )
            outcome.orphans += not is_whole
            known[request.node] = _Played(request=request, parent=parent) if is_whole else None
        played = known[request.node]
        if played is not None and played.request is request:
            yield played, mark


def _path(played: _Played, count: int) -> TokenIds:
    """The first `count` tokens of prompt, reply and closing. O(history)."""
    pieces: list[TokenIds] = []
    step: _Played | None = played
    while step is not None:
        pieces.append(_own(step.request, step.request.first, count))
        count = step.request.first
        step = step.parent
    return b"".join(reversed(pieces))


def _own(request: Request, start: int, stop: int) -> TokenIds:
    """The tokens of positions `[start, stop)`, none of them before the request's own."""
    own = request.token_ids + request.reply
    return tokens.tail(tokens.head(own, stop - request.first), start - request.first)
