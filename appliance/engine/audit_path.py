"""The audit of one path: finds it as a request would, computes it again, compares, drops what is wrong.

Computes from position 0 on into pages of its own, under a namespace that nothing else has and without a
commit. Never: chooses the path, or when a slice of the work runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import dataclass

import torch

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine.audit_cause import Cause, PageComparison, largest, tolerance_of
from appliance.engine.audit_pass import AuditPass
from appliance.engine.audit_sample import CachedPath
from appliance.engine.tiers import Tiers
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.tokens import TokenIds

SLICE_TOKENS = 64
"""Computed in one go: less than a step may have, so a request waits no longer than for a normal step."""

COMPARED_PAGES = 16
"""Pages compared in one go."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was cached of a path: `count` tokens, those from `restored_from` on out of lower tiers."""

    lease: Lease
    token_ids: TokenIds
    count: int
    restored_from: int


class PathAuditor:
    """Audits of single paths, in slices."""

    def __init__(self, decoder: Decoder, cache: KVCache, index: PrefixIndex, tiers: Tiers) -> None:
        self._pass = AuditPass(decoder, cache)
        self._tolerance = tolerance_of(decoder, cache)
        self._cache = cache
        self._index = index
        self._tiers = tiers

    def audit(self, path: CachedPath) -> Generator[int, None, AuditResult | None]:
        """Yields the tokens that each slice computed; None when nothing was found or no page is free.

        Closed early, it gives its pages back.
        """
        leases: list[Lease] = []
        try:
            found = self._find(path, leases)
            if found is None:
                return None
            own = self._own_pages(found, leases)
            if own is None:
                return None
            cached_logits = self._pass.run(
                found.lease, found.token_ids, found.count, found.count + 1
            )
            yield 1
            for start in range(0, found.count + 1, SLICE_TOKENS):
                stop = min(start + SLICE_TOKENS, found.count + 1)
                own_logits = self._pass.run(own, found.token_ids, start, stop)
                yield stop - start
            pages = -(-found.count // self._cache.page_size)
            comparison = PageComparison(
                self._cache,
                list(tokens.unpack(found.lease.page_table))[:pages],
                list(tokens.unpack(own.page_table))[:pages],
                tokens=found.count,
                tolerance=self._tolerance,
            )
            for first in range(0, pages, COMPARED_PAGES):
                comparison.compare(first, min(first + COMPARED_PAGES, pages))
                yield 0
            cause = self._judge(found, comparison, cached_logits, own_logits)
        finally:
            for lease in leases:
                lease.release()
        return self._result(path, found.count, comparison, cause, cached_logits, own_logits)

    def _find(self, path: CachedPath, leases: list[Lease]) -> _Found | None:
        token_ids, stretches = with_probe(path)
        lease = self._admit(
            token_ids, stretches, leases, onload_tokens_min=self._tiers.onload_tokens_min()
        )
        if lease is None or lease.hit_tokens == 0:
            return None
        count = lease.hit_tokens
        return _Found(
            lease=lease,
            token_ids=tokens.head(token_ids, count + 1),
            count=count,
            restored_from=count - lease.onloaded_tokens,
        )

    def _own_pages(self, found: _Found, leases: list[Lease]) -> Lease | None:
        namespace = b"audit " + secrets.token_bytes(16)
        return self._admit(found.token_ids, [(namespace, found.count + 1)], leases)

    def _admit(
        self,
        token_ids: TokenIds,
        stretches: list[tuple[bytes, int]],
        leases: list[Lease],
        *,
        onload_tokens_min: int | None = None,
    ) -> Lease | None:
        """Pages as a request gets them; what it finds is counted apart from what requests find."""
        count = tokens.count(token_ids)
        if -(-count // self._cache.page_size) > self._cache.pages:
            return None
        lease = self._index.admit(
            token_ids, stretches, count, resumes=True, onload_tokens_min=onload_tokens_min
        )
        if lease is not None:
            leases.append(lease)
            # Before a row is written: what was evicted for these pages goes to its tier first.
            self._tiers.settle(lease)
            if lease.copy is not None:
                self._cache.copy_rows(*lease.copy)
        return lease

    def _judge(
        self,
        found: _Found,
        comparison: PageComparison,
        cached: torch.Tensor,
        own: torch.Tensor,
    ) -> Cause | None:
        position = comparison.first_wrong
        if position is None:
            is_near = float((cached - own).abs().max()) <= self._tolerance.logits
            return None if is_near else Cause.WRONG_LOGITS
        cause = comparison.cause()
        if cause is not Cause.WRONG_CONTENT or position < found.restored_from:
            return cause
        page = tokens.unpack(found.lease.page_table)[position // self._cache.page_size]
        # Its own slot was given up when it was restored.
        return Cause.FOREIGN_PAGE if self._tiers.is_in_host(page) else Cause.DAMAGED_PAGE

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
            dropped = self._tiers.quarantine(path.token_ids, list(path.stretches), position)
        return AuditResult(
            tokens=count,
            logit_difference=largest((cached - own).abs()),
            row_difference=comparison.row_difference,
            top1_agrees=bool(cached.argmax() == own.argmax()),
            cause=cause,
            position=position,
            page=None if position is None else position // self._cache.page_size,
            pages_dropped=dropped,
        )


def with_probe(path: CachedPath) -> tuple[TokenIds, list[tuple[bytes, int]]]:
    """The path and one token more, so that all of it can be found: its last token again, nobody's."""
    last = tokens.tail(path.token_ids, path.tokens - 1)
    return path.token_ids + last, [*path.stretches, (b"audit probe", 1)]
