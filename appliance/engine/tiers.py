"""Carries out what the prefix index decides about pages outside the device. Never: decides it.

The index says which page's content goes where (`_core.PrefixIndex.take_moves`); here are the places: the
device's pages, a host arena of slots, and the disk tier. A move is carried out when the call returns, or
is enqueued where whatever comes later is ordered after it: the device's copies on its stream, the disk's
writes in its thread. What cannot be had back as it was is rejected, and computed again.

A page handed to the disk is copied into a buffer first, and the buffers are few. When all are on their
way to a slow disk, the loop waits for one, but at most `WRITE_WAIT_S` and a little for each move of a
call; then pages are dropped: their slots keep another page's key, so they are not mistaken for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import numpy
import torch

from appliance import tokens
from appliance._core import Lease, PrefixIndex
from appliance.engine.disk_tier import ANSWER_S, DiskTier, Read
from appliance.engine.tier_costs import Tier, TierCosts
from appliance.engine.tier_save import SavedPage, plan_save
from appliance.model.kv_cache import KVCache
from appliance.tokens import TokenIds

log = logging.getLogger("appliance.engine")

WRITE_WAIT_S = 0.25
PAGE_WRITE_WAIT_S = 0.002
"""More for each page: a call that moves many is one for a long prompt, which takes far longer itself."""
PROBE_BYTES = 64


class Tiers:
    """The places of one engine's pages. Called by the thread of the step loop only."""

    def __init__(
        self,
        index: PrefixIndex,
        cache: KVCache,
        *,
        host_slots: int = 0,
        disk: DiskTier | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The index must have been made with the same numbers of slots; what the disk holds is told
        to it here."""
        self._index = index
        self._cache = cache
        self._arena = _arena(host_slots, cache)
        self._host_keys: list[bytes | None] = [None] * host_slots
        self._disk = disk
        self._clock = clock
        self._costs = TierCosts(cache.page_size)
        self._reads: deque[tuple[Read, int]] = deque()
        self._bad: set[int] = set()
        self._restored_pages = 0
        self._rejected_pages = 0
        self._dropped_writes = 0
        self._offload_s = 0.0
        self._onload_s = 0.0
        if disk is not None:
            index.fill_tier("disk", disk.found)

    def onload_tokens_min(self) -> int | None:
        """For an admission: from how many tokens on lower tiers are worth it; None for not at all.

        One number for both tiers, so the slower one that has pages decides.
        """
        if self._disk is None and not self._host_keys:
            return None
        stats = self._index.stats()
        if stats["pages_disk"] > 0:
            return self._costs.onload_tokens_min("disk")
        return self._costs.onload_tokens_min("host") if stats["pages_host"] > 0 else None

    def took_step(self, step_tokens: int, seconds: float) -> None:
        """A step computed so many tokens: what restoring is measured against."""
        self._costs.took_step(step_tokens, seconds)

    def settle(self, lease: Lease) -> None:
        """Carry out the moves of an admission, before anything is written into the lease's pages.

        `lease.hit_tokens` then ends where what was restored can be trusted, and that is committed: a
        request that is cancelled before its first token does not lose it.
        """
        self.carry_out()
        if lease.onloaded_tokens == 0:
            return
        size = self._cache.page_size
        first = (lease.hit_tokens - lease.onloaded_tokens) // size
        restored = tokens.unpack(lease.page_table)[first : lease.hit_tokens // size]
        good = next((n for n, page in enumerate(restored) if page in self._bad), len(restored))
        if good < len(restored):
            lease.reject((first + good) * size)
            log.warning("pages_rejected", extra={"pages": len(restored) - good})
        self._restored_pages += good
        self._rejected_pages += len(restored) - good
        if good > 0:
            lease.commit(lease.hit_tokens)

    def carry_out(self) -> None:
        """Do the moves that the index decided since the last call, in their order."""
        moves = self._index.take_moves()
        if not moves:
            return
        self._bad.clear()
        write_until = self._clock() + WRITE_WAIT_S + PAGE_WRITE_WAIT_S * len(moves)
        restored: dict[Tier, int] = {"host": 0, "disk": 0}
        spent = {"device": 0.0, "host": 0.0, "disk": 0.0}
        for source, number, target, at, key in moves:
            started = self._clock()
            if target == "host":
                self._cache.read_page(number, self._arena[at])
                self._host_keys[at] = key
            elif target == "disk":
                self._write(source, number, at, key, write_until)
            elif source == "host":
                restored["host"] += 1
                self._restore(number, at, key)
            else:
                restored["disk"] += 1
                self._read(number, at, key)
            spent[target] += self._clock() - started
        started = self._clock()
        while self._reads:
            self._finish_read()
        spent["device"] += self._clock() - started
        self._measure(restored, spent)

    def forget(self) -> int:
        """Drop every cached page that nothing locks, and all of the lower tiers, on disk too; returns
        how many pages of the device became free."""
        if self._disk is not None:
            self._disk.forget()
        return self._index.clear()

    def quarantine(
        self, token_ids: TokenIds, stretches: list[tuple[bytes, int]], from_token: int
    ) -> int:
        """`PrefixIndex.quarantine`, on disk too; raises ValueError as there."""
        dropped = self._index.quarantine(token_ids, stretches, from_token)
        if self._disk is not None:
            self._disk.forget()
        return dropped

    def purge(self, namespace: bytes) -> int:
        """`PrefixIndex.purge`, on disk too."""
        if self._disk is not None:
            self._disk.forget()
        return self._index.purge(namespace)

    def is_in_host(self, page: int) -> bool:
        """Whether a page in host memory has exactly the content of this page of the device. O(slots)."""
        used = [slot for _, slot in self._index.tier_pages("host")]
        content = torch.empty(self._cache.page_content_bytes, dtype=torch.uint8)
        self._cache.read_page(page, content)
        self._cache.finish_copies()
        # A few bytes tell most pages apart.
        begins = (self._arena[used, :PROBE_BYTES] == content[:PROBE_BYTES]).all(1).tolist()
        return any(
            begins_so and bool((self._arena[slot] == content).all())
            for slot, begins_so in zip(used, begins, strict=True)
        )

    def save(self, seconds_max: float) -> None:
        """Bring what is cached to disk, the most recent pages first, for the next start.

        For the end: afterwards the index is out of step with the places, and must not be used.
        """
        if self._disk is None or self._disk.failure is not None:
            return
        until = self._clock() + seconds_max
        plan = self._plan_save()
        arrivals = self._disk.next_arrivals(len(plan))
        saved = 0
        for page, arrival in zip(reversed(plan), reversed(arrivals), strict=True):
            buffer = self._disk.take_buffer(until - self._clock())
            if buffer is None:
                break
            self._fetch(*page.source, buffer)
            self._disk.write(page.slot, page.key, buffer, arrival)
            saved += 1
        in_time = self._disk.finish(until - self._clock())
        log.info(
            "cache_saved",
            extra={"pages": saved, "left_out": len(plan) - saved, "in_time": in_time},
        )

    def close(self) -> None:
        """Let go of the disk."""
        if self._disk is not None:
            self._disk.close()

    def stats(self) -> dict[str, float]:
        """Gauges and counters by name."""
        index = self._index.stats()
        page_bytes = self._cache.page_content_bytes
        disk = self._disk
        return {
            "tier_host_bytes": index["pages_host"] * page_bytes,
            "tier_host_bytes_max": self._arena.nbytes,
            "tier_disk_bytes": index["pages_disk"] * page_bytes,
            "tier_disk_bytes_max": 0 if disk is None else disk.file_bytes,
            "tier_disk_off": float(disk is not None and disk.failure is not None),
            "tier_restored_pages": self._restored_pages,
            "tier_rejected_pages": self._rejected_pages,
            "tier_dropped_writes": self._dropped_writes,
            "tier_offload_seconds": self._offload_s,
            "tier_onload_seconds": self._onload_s,
            "tier_host_page_seconds": self._costs.page_s("host"),
            "tier_disk_page_seconds": self._costs.page_s("disk"),
            "prefill_token_seconds": self._costs.prefill_token_s,
        }

    def _restore(self, slot: int, page: int, key: bytes) -> None:
        if self._host_keys[slot] == key:
            self._cache.write_page(page, self._arena[slot])
        else:
            self._bad.add(page)

    def _read(self, slot: int, page: int, key: bytes) -> None:
        assert self._disk is not None
        buffer = self._take_buffer(self._clock() + ANSWER_S)
        if buffer is None:
            self._disk.turn_off(f"no answer for {ANSWER_S} s")
            self._bad.add(page)
            return
        self._reads.append((self._disk.read(slot, key, buffer), page))

    def _finish_read(self) -> None:
        assert self._disk is not None
        read, page = self._reads.popleft()
        is_good = read.wait(ANSWER_S if self._disk.failure is None else 0.0)
        if is_good is None:
            # The buffer stays with the thread, which may still write into it.
            self._disk.turn_off(f"no answer for {ANSWER_S} s")
        if is_good:
            self._cache.write_page(page, read.buffer)
            self._cache.finish_copies()
        else:
            self._bad.add(page)
        if is_good is not None:
            self._disk.give_buffer(read.buffer)

    def _write(self, source: str, number: int, slot: int, key: bytes, until: float) -> None:
        assert self._disk is not None
        if source == "host" and self._host_keys[number] != key:
            return
        if self._disk.failure is not None:
            return
        buffer = self._take_buffer(until)
        if buffer is None:
            self._dropped_writes += 1
            return
        self._fetch(source, number, buffer)
        (arrival,) = self._disk.next_arrivals(1)
        self._disk.write(slot, key, buffer, arrival)

    def _take_buffer(self, until: float) -> torch.Tensor | None:
        """An idle buffer; those of reads come back only by this thread."""
        assert self._disk is not None
        while self._reads:
            buffer = self._disk.take_buffer(0.0)
            if buffer is not None:
                return buffer
            self._finish_read()
        return self._disk.take_buffer(until - self._clock())

    def _fetch(self, source: str, number: int, buffer: torch.Tensor) -> None:
        """Copy a page of the device or the host arena into a buffer, at once."""
        if source == "device":
            self._cache.read_page(number, buffer)
            self._cache.finish_copies()
        else:
            # What is in the arena may still be under way from the device.
            self._cache.finish_copies()
            buffer.copy_(self._arena[number])

    def _measure(self, restored: dict[Tier, int], spent: dict[str, float]) -> None:
        self._offload_s += spent["host"] + spent["disk"]
        self._onload_s += spent["device"]
        # A run out of both tiers is as slow as its disk part.
        tier: Tier = "disk" if restored["disk"] > 0 else "host"
        if restored[tier] > 0:
            self._costs.took_restore(tier, restored[tier], spent["device"])

    def _plan_save(self) -> list[SavedPage]:
        """Have the index evict all it can, so that the tiers get every page in its order."""
        assert self._disk is not None
        stats = self._index.stats()
        pages = stats["pages_free"] + stats["pages_evictable"]
        if pages > 0:
            lease = self._index.admit(tokens.pack([0]), [(b"", 1)], pages * self._cache.page_size)
            assert lease is not None
            lease.release()
        return plan_save(
            self._index.take_moves(),
            host=self._index.tier_pages("host"),
            disk=self._index.tier_pages("disk"),
            disk_slots=self._disk.slots,
        )


def _arena(slots: int, cache: KVCache) -> torch.Tensor:
    """Uint8 [slots, page_content_bytes]: page-locked for a GPU, else given out by use."""
    shape = (slots, cache.page_content_bytes)
    if cache.data.device.type == "cuda":
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(numpy.zeros(shape, dtype=numpy.uint8))
