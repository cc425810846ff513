"""The audit: proves in production that what is cached is what would be computed (promises P2, P3).

Takes paths that finished sequences left behind, within a budget of tokens, and those that an operator
asks for. On a failure the wrong pages and all that follows them leave the index, an error event is
logged, and the process goes on. Never: looks at a text, runs beside a request, or waits.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from appliance._core import PrefixIndex
from appliance.engine.audit_cause import Cause
from appliance.engine.audit_path import SLICE_TOKENS, AuditResult, PathAuditor, with_probe
from appliance.engine.audit_sample import CachedPath, PathSample
from appliance.engine.runner import DeviceLost
from appliance.engine.sequence import Sequence
from appliance.engine.tiers import Tiers
from appliance.errors import Conflict
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache

log = logging.getLogger("appliance.engine")

BUDGET_S_MAX = 60.0
"""So much of the budget may be saved up."""

DEMANDS_MAX = 16
"""Audits on demand that wait for idle time."""


@dataclass(slots=True, kw_only=True)
class _Demand:
    """What an operator asked for: this path, or as many sampled ones as have `tokens` tokens.

    Nobody waits for the answer after `until`.
    """

    paths: list[CachedPath]
    tokens: int
    until: float
    answer: Callable[[list[AuditResult]], None]
    results: list[AuditResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    """The audit that is under way: its slices, for whom, and the path where it was named."""

    slices: Generator[int, None, AuditResult | None]
    demand: _Demand | None
    named: CachedPath | None


class Auditor:
    """The audit of one engine; `step` runs one slice of it, in the engine's own thread."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        index: PrefixIndex,
        tiers: Tiers,
        *,
        tokens_per_minute: int,
        clock: Callable[[], float],
        random_source: random.Random | None = None,
    ) -> None:
        """`tokens_per_minute`: budget of idle-time audits, 0 for none but those on demand."""
        self._paths = PathAuditor(decoder, cache, index, tiers)
        self._index = index
        self._tokens_per_s = tokens_per_minute / 60
        self._clock = clock
        self._sample = PathSample(random_source or random.Random())
        self._budget = 0.0
        self._refilled_at = clock()
        self._audit: _Audit | None = None
        self._demands: deque[_Demand] = deque()
        self._counters = dict.fromkeys(
            (
                "audits",
                "audited_tokens",
                "audit_failures",
                "audits_given_up",
                "audit_pages_dropped",
            ),
            0.0,
        )
        self._last_difference = 0.0

    @property
    def values(self) -> dict[str, float]:
        """Counters, the last logit difference, and whether an audit ever failed here (the alarm)."""
        return {
            **self._counters,
            "audit_logit_difference": self._last_difference,
            "audit_alarm": float(self._counters["audit_failures"] > 0),
        }

    def remember(self, sequence: Sequence, written: int) -> None:
        """A sequence ends, its first `written` tokens are committed and its lease is still there.

        If it is taken into the sample, the index must have all of them now (P3).
        """
        assert sequence.lease is not None
        if sequence.lease.is_detached:
            return
        path = self._sample.offer(sequence, written)
        if path is None:
            return
        found = self._index.explain(*with_probe(path))["hit_tokens"]
        assert isinstance(found, int)
        if found < written:
            self._fail(AuditResult(tokens=0, cause=Cause.COVERAGE, position=found))

    def demand(
        self,
        path: CachedPath | None,
        tokens_max: int,
        answer: Callable[[list[AuditResult]], None],
        *,
        wait_s: float,
    ) -> None:
        """Audit a path, or sampled ones of `tokens_max` tokens together.

        `answer` is called once, or not at all where the audit has not begun within `wait_s`.

        Raises Conflict when too many wait already.
        """
        self._forget_expired()
        if len(self._demands) >= DEMANDS_MAX:
            raise Conflict(f"{DEMANDS_MAX} audits wait for idle time already")
        paths = [] if path is None else [path]
        self._demands.append(
            _Demand(
                paths=paths,
                tokens=0 if paths else tokens_max,
                until=self._clock() + wait_s,
                answer=answer,
                results=[],
            )
        )

    def wait_s(self) -> float | None:
        """Seconds until `step` has something to do; None when nothing is to come.

        An audit that has begun goes on, so that it has its pages for a short time; what it takes more
        than the budget has is made up for before the next.
        """
        if self._demands or self._audit is not None:
            return 0.0
        if self._tokens_per_s == 0 or len(self._sample) == 0:
            return None
        self._refill()
        return max(0.0, (SLICE_TOKENS - self._budget) / self._tokens_per_s)

    def step(self) -> None:
        """Run one slice, if one is due. Raises DeviceLost."""
        if self.wait_s() != 0.0:
            return
        audit = self._audit = self._audit or self._next_audit()
        if audit is None:
            return
        try:
            spent = next(audit.slices)
        except StopIteration as ended:
            self._end(audit, ended.value)
        except (RuntimeError, MemoryError) as error:
            # The audit's own forward failed, as a request's may: it ends, the process does not.
            log.error("audit_not_done", exc_info=error)
            self._end(audit, None)
            if isinstance(error, torch.AcceleratorError):
                raise DeviceLost(str(error)) from error
        else:
            if audit.demand is None:
                self._budget -= spent

    def give_way(self) -> None:
        """Give up the audit that is under way and its pages: a request needs them."""
        audit = self._audit
        if audit is not None:
            audit.slices.close()
            self._end(audit, None)
            if audit.demand is not None and audit.named is not None:
                audit.demand.paths.append(audit.named)

    @property
    def holds_pages(self) -> bool:
        """Whether an audit is under way."""
        return self._audit is not None

    def _refill(self) -> None:
        now = self._clock()
        self._budget += (now - self._refilled_at) * self._tokens_per_s
        most = max(SLICE_TOKENS, BUDGET_S_MAX * self._tokens_per_s)
        self._budget = min(self._budget, most)
        self._refilled_at = now

    def _forget_expired(self) -> None:
        """What nobody waits for takes neither a place in the queue nor a path out of the sample."""
        now = self._clock()
        self._demands = deque(demand for demand in self._demands if demand.until > now)

    def _next_audit(self) -> _Audit | None:
        """The next one that is due; answers a demand for which there is none."""
        self._forget_expired()
        demand = self._demands[0] if self._demands else None
        named = demand.paths.pop() if demand is not None and demand.paths else None
        path = named
        if demand is None or demand.tokens > 0:
            path = self._sample.take()
        if path is None:
            if demand is not None:
                self._demands.popleft().answer(demand.results)
            return None
        return _Audit(slices=self._paths.audit(path), demand=demand, named=named)

    def _end(self, audit: _Audit, result: AuditResult | None) -> None:
        """Count and tell; None for an audit that found nothing to compare or was given up."""
        self._audit = None
        if result is None:
            self._counters["audits_given_up"] += 1
            return
        self._counters["audits"] += 1
        self._counters["audited_tokens"] += result.tokens
        self._last_difference = result.logit_difference
        if audit.demand is not None:
            audit.demand.results.append(result)
            audit.demand.tokens = max(0, audit.demand.tokens - result.tokens)
        if result.cause is not None:
            self._fail(result)
        else:
            log.info(
                "audit_passed",
                extra={
                    "tokens": result.tokens,
                    "logit_difference": result.logit_difference,
                    "top1_agrees": result.top1_agrees,
                },
            )

    def _fail(self, result: AuditResult) -> None:
        assert result.cause is not None
        self._counters["audit_failures"] += 1
        self._counters["audit_pages_dropped"] += result.pages_dropped
        log.error(
            "audit_failed",
            extra={
                "cause": result.cause.value,
                "position": result.position,
                "page": result.page,
                "tokens": result.tokens,
                "pages_dropped": result.pages_dropped,
                "logit_difference": result.logit_difference,
            },
        )
