"""How much work each tenant had lately, for a fair order. Never: decides it, or counts for a bill.

Virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024,
arXiv:2401.00588): the tenant with the lowest counter goes first, and one that comes back to work is
lifted to the lowest of those at work, so that nobody saves up a claim by being away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType

from appliance.engine.chunk import Chunk

PREFILL_WEIGHT = 1.0
DECODE_WEIGHT = 2.0
"""A token of a reply counts for two of a prompt (the paper's weights). Only computed tokens count: what
the cache gave costs nothing."""


class TenantShares:
    """A counter for each tenant that has work."""

    def __init__(self) -> None:
        self._served: dict[bytes, float] = {}

    @property
    def served(self) -> Mapping[bytes, float]:
        """The counters; a tenant that is not in it had no work."""
        return MappingProxyType(self._served)

    def arrive(self, tenant: bytes, backlogged: Set[bytes]) -> None:
        """A tenant sends a request; `backlogged` are those with prompts waiting or not computed.

        Where nobody was, everybody starts even.
        """
        if not backlogged:
            self._served.clear()
        if tenant in backlogged:
            return
        lowest = min((self._served.get(other, 0.0) for other in backlogged), default=0.0)
        # A counter below the lowest at work would be lifted on its return: it need not be kept.
        self._served = {
            other: counter
            for other, counter in self._served.items()
            if other in backlogged or counter > lowest
        }
        self._served[tenant] = max(self._served.get(tenant, 0.0), lowest)

    def charge(self, chunks: Iterable[Chunk]) -> None:
        """The work of a step."""
        for chunk in chunks:
            weight = DECODE_WEIGHT if chunk.count == 1 else PREFILL_WEIGHT
            tenant = chunk.sequence.tenant
            self._served[tenant] = self._served.get(tenant, 0.0) + weight * chunk.count
