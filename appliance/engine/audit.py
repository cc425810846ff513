"""The audit: proves in production that what is cached is what would be computed (promises P2, P3).

Takes paths that finished sequences left behind, finds them as a request would, and computes them again
from position 0 on into pages of its own, under a namespace that nothing else has and without a commit. On
a failure the wrong pages and all that follows them leave the index, an error event is logged, and the
process goes on. Never: looks at a text, runs beside a request, or waits.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine.audit_cause import TOLERANCES, Cause, PageComparison
from appliance.engine.audit_pass import AuditPass
from appliance.engine.audit_sample import CachedPath, PathSample
from appliance.engine.runner import DeviceLost
from appliance.engine.sequence import Sequence
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.tokens import TokenIds

log = logging.getLogger("appliance.engine")

SLICE_TOKENS = 64
"""Computed in one go: less than a step may have, so a request waits no longer than for a normal step."""

COMPARED_PAGES = 16
"""Pages compared in one go."""

BUDGET_S_MAX = 60.0
"""So much of the budget may be saved up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """One audited path. Differences are the largest; `position` and what follows are set on a failure.

    `tokens`: positions that were found and compared. `pages_dropped`: by the quarantine, in all tiers.
    """

    tokens: int
    logit_difference: float = 0.0
    row_difference: float = 0.0
    top1_agrees: bool = True
    cause: Cause | None = None
    position: int | None = None
    page: int | None = None
    pages_dropped: int = 0


@dataclass(slots=True, kw_only=True)
class _Demand:
    """What an operator asked for: this path, or as many sampled ones as have `tokens` tokens."""

    paths: list[CachedPath]
    tokens: int
    answer: Callable[[list[AuditResult]], None]
    results: list[AuditResult]


class Auditor:
    """The audit of one engine; `step` runs one slice of it, in the engine's own thread."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        index: PrefixIndex,
        *,
        tokens_per_minute: int,
        clock: Callable[[], float],
        random_source: random.Random | None = None,
    ) -> None:
        """`tokens_per_minute`: budget of idle-time audits, 0 for none but those on demand."""
        self._pass = AuditPass(decoder, cache)
        self._cache = cache
        self._index = index
        self._tokens_per_s = tokens_per_minute / 60
        self._clock = clock
        self._sample = PathSample(random_source or random.Random())
        self._budget = 0.0
        self._refilled_at = clock()
        self._job: Generator[int, None, AuditResult | None] | None = None
        self._demands: deque[_Demand] = deque()
        self._asked: CachedPath | None = None
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
        found = self._index.explain(*_with_probe(path))["hit_tokens"]
        assert isinstance(found, int)
        if found < written:
            self._fail(AuditResult(tokens=0, cause=Cause.COVERAGE, position=found))

    def demand(
        self,
        path: CachedPath | None,
        tokens_max: int,
        answer: Callable[[list[AuditResult]], None],
    ) -> None:
        """Audit a path, or sampled ones of `tokens_max` tokens together; `answer` is called once."""
        paths = [] if path is None else [path]
        self._demands.append(
            _Demand(paths=paths, tokens=0 if paths else tokens_max, answer=answer, results=[])
        )

    def wait_s(self) -> float | None:
        """Seconds until `step` has something to do; None when nothing is to come."""
        if self._demands:
            return 0.0
        if self._tokens_per_s == 0 or (self._job is None and len(self._sample) == 0):
            return None
        self._refill()
        return max(0.0, (SLICE_TOKENS - self._budget) / self._tokens_per_s)

    def step(self) -> None:
        """Run one slice, if one is due. Raises DeviceLost."""
        if self.wait_s() != 0.0:
            return
        if self._job is None and not self._next_job():
            return
        assert self._job is not None
        try:
            spent = next(self._job)
        except StopIteration as ended:
            self._job = None
            self._end(ended.value)
            return
        except (RuntimeError, MemoryError) as error:
            # The audit's own forward failed, as a request's may: it ends, the process does not.
            self._job = None
            log.error("audit_not_done", exc_info=error)
            if isinstance(error, torch.AcceleratorError):
                raise DeviceLost(str(error)) from error
            self._end(None)
            return
        if not self._demands:
            self._budget -= spent

    def give_way(self) -> None:
        """Give up the audit that is under way and its pages: a request needs them."""
        if self._job is not None:
            self._job.close()
            self._job = None
            self._end(None)
            if self._demands and self._asked is not None:
                self._demands[0].paths.append(self._asked)

    @property
    def holds_pages(self) -> bool:
        """Whether an audit is under way."""
        return self._job is not None

    def _refill(self) -> None:
        now = self._clock()
        self._budget += (now - self._refilled_at) * self._tokens_per_s
        most = max(SLICE_TOKENS, BUDGET_S_MAX * self._tokens_per_s)
        self._budget = min(self._budget, most)
        self._refilled_at = now

    def _next_job(self) -> bool:
        """Begin the next audit; answers a demand for which there is none."""
        demand = self._demands[0] if self._demands else None
        self._asked = demand.paths.pop() if demand is not None and demand.paths else None
        path = self._asked
        if demand is None or demand.tokens > 0:
            path = self._sample.take()
        if path is None:
            if demand is not None:
                self._demands.popleft().answer(demand.results)
            return False
        self._job = self._audit(path)
        return True

    def _end(self, result: AuditResult | None) -> None:
        """Count and tell; None for an audit that found nothing to compare or was given up."""
        demand = self._demands[0] if self._demands else None
        if result is None:
            self._counters["audits_given_up"] += 1
            return
        self._counters["audits"] += 1
        self._counters["audited_tokens"] += result.tokens
        self._last_difference = result.logit_difference
        if demand is not None:
            demand.results.append(result)
            demand.tokens = max(0, demand.tokens - result.tokens)
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

    def _audit(self, path: CachedPath) -> Generator[int, None, AuditResult | None]:
        """Yields the tokens each slice computed; None when nothing was found or there are no pages."""
        token_ids, stretches = _with_probe(path)
        leases: list[Lease] = []
        try:
            found = self._admit(token_ids, stretches, leases)
            if found is None or found.hit_tokens == 0:
                return None
            count = found.hit_tokens
            asked = tokens.head(token_ids, count + 1)
            namespace = b"audit " + secrets.token_bytes(16)
            own = self._admit(asked, [(namespace, count + 1)], leases)
            if own is None:
                return None
            cached_logits = self._pass.run(found, asked, count, count + 1)
            yield 1
            for start in range(0, count + 1, SLICE_TOKENS):
                stop = min(start + SLICE_TOKENS, count + 1)
                own_logits = self._pass.run(own, asked, start, stop)
                yield stop - start
            pages = -(-count // self._cache.page_size)
            comparison = PageComparison(
                self._cache,
                list(tokens.unpack(found.page_table))[:pages],
                list(tokens.unpack(own.page_table))[:pages],
                count,
            )
            for first in range(0, pages, COMPARED_PAGES):
                comparison.compare(first, min(first + COMPARED_PAGES, pages))
                yield 0
            cause = self._judge(comparison, cached_logits, own_logits)
        finally:
            for lease in leases:
                lease.release()
        return self._result(path, count, comparison, cause, cached_logits, own_logits)

    def _admit(
        self, token_ids: TokenIds, stretches: list[tuple[bytes, int]], leases: list[Lease]
    ) -> Lease | None:
        """Pages as a request gets them; what it finds is counted apart from what requests find."""
        count = tokens.count(token_ids)
        if -(-count // self._cache.page_size) > self._cache.pages:
            return None
        lease = self._index.admit(token_ids, stretches, count, resumes=True)
        if lease is not None:
            leases.append(lease)
            if lease.copy is not None:
                self._cache.copy_rows(*lease.copy)
        return lease

    def _judge(
        self, comparison: PageComparison, cached: torch.Tensor, own: torch.Tensor
    ) -> Cause | None:
        if comparison.first_wrong is not None:
            return comparison.cause()
        tolerance = TOLERANCES[self._cache.data.dtype]
        is_near = float((cached - own).abs().max()) <= tolerance.logits
        return None if is_near else Cause.WRONG_LOGITS

    def _result(
        self,
        path: CachedPath,
        count: int,
        comparison: PageComparison,
        cause: Cause | None,
        cached: torch.Tensor,
        own: torch.Tensor,
    ) -> AuditResult:
        """The verdict; wrong pages are dropped from the index now, when the audit has let them go."""
        position = comparison.first_wrong
        dropped = 0
        if position is not None:
            dropped = self._index.quarantine(path.token_ids, list(path.stretches), position)
        return AuditResult(
            tokens=count,
            logit_difference=float((cached - own).abs().max().nan_to_num(np.inf)),
            row_difference=comparison.row_difference,
            top1_agrees=bool(cached.argmax() == own.argmax()),
            cause=cause,
            position=position,
            page=None if position is None else position // self._cache.page_size,
            pages_dropped=dropped,
        )


def _with_probe(path: CachedPath) -> tuple[TokenIds, list[tuple[bytes, int]]]:
    """The path and one token more, so that all of it can be found: its last token again, nobody's."""
    last = tokens.tail(path.token_ids, path.tokens - 1)
    return path.token_ids + last, [*path.stretches, (b"audit probe", 1)]
