"""A ragged batch for the CPU attention kernel, with its tensors; float32 or int8."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from appliance import _core
from appliance.tokens import pack
from tests.reference import attention as reference

GARBAGE = float("nan")


def multiplies_pairs() -> bool:
    """Whether this CPU has the products of pairs of whole numbers (AVX-512 VNNI)."""
    known = Path("/proc/cpuinfo")
    flags = set(known.read_text().split()) if known.exists() else set()
    return {"avx512f", "avx512bw", "avx512_vnni"} <= flags


def scored_against_int8(q: torch.Tensor) -> torch.Tensor:
    """Queries [tokens, heads, head_dim] as the kernel scores them: int16, each row over its own largest
    value, where the CPU multiplies pairs of whole numbers and a row is whole vectors of them."""
    head_dim = q.shape[-1]
    if head_dim % 32 or head_dim > 512 or not multiplies_pairs():
        return q
    scale = q.abs().amax(-1, keepdim=True) / 32_767
    return (q / scale).round() * scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A ragged batch over caches whose unused rows hold NaN."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    queries: list[int]
    contexts: list[int]
    page_tables: list[list[int]]
    scale: float
    window: int | None = None
    int8: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """Numbers of K and V, scales of K and V; then the caches hold what these stand for."""

    @classmethod
    def random(
        cls,
        seed: int,
        sequences: list[tuple[int, int]],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        spread: float = 1.0,
    ) -> "Call":
        """`sequences`: (queries, context) of each."""
        generator = torch.Generator().manual_seed(seed)
        counts = [-(-context // page_size) for _, context in sequences]
        pages = sum(counts) + 3
        order = torch.randperm(pages, generator=generator).tolist()
        tables = [[order.pop() for _ in range(count)] for count in counts]
        shape = (pages, kv_heads, page_size, head_dim)
        k_cache, v_cache = torch.full(shape, GARBAGE), torch.full(shape, GARBAGE)
        for (_, context), table in zip(sequences, tables, strict=True):
            slots = [table[p // page_size] * page_size + p % page_size for p in range(context)]
            k, v = torch.randn(2, context, kv_heads, head_dim, generator=generator) * spread
            store(k, v, k_cache, v_cache, slots)
        tokens = sum(queries for queries, _ in sequences)
        return cls(
            q=torch.randn(tokens, heads, head_dim, generator=generator) * spread,
            k_cache=k_cache,
            v_cache=v_cache,
            queries=[queries for queries, _ in sequences],
            contexts=[context for _, context in sequences],
            page_tables=tables,
            scale=1 / math.sqrt(head_dim),
        )

    def arguments(self) -> dict[str, Any]:
        pages, kv_heads, page_size, head_dim = self.k_cache.shape
        return {
            "query_starts": starts(self.queries),
            "context_lens": pack(self.contexts),
            "page_tables": pack([page for table in self.page_tables for page in table]),
            "page_starts": starts([len(table) for table in self.page_tables]),
            "heads": self.q.shape[1],
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "pages": pages,
            "page_size": page_size,
            "scale": self.scale,
            "window": self.window,
        }

    def run(self, **changed: Any) -> torch.Tensor:
        out = torch.full_like(self.q, GARBAGE)
        tensors = (self.k_cache, self.v_cache) if self.int8 is None else self.int8
        k, v, *scales = (tensor.data_ptr() for tensor in tensors)
        arguments = {**self.arguments(), "scales": tuple(scales) or None, **changed}
        _core.paged_attention(out.data_ptr(), self.q.data_ptr(), k, v, **arguments)
        return out

    def expected(self) -> torch.Tensor:
        return reference.paged_attention(
            self.q if self.int8 is None else scored_against_int8(self.q),
            self.k_cache,
            self.v_cache,
            queries=self.queries,
            contexts=self.contexts,
            page_tables=self.page_tables,
            scale=self.scale,
            window=self.window,
        )

    def with_int8(self) -> "Call":
        """The same batch over int8 caches, stored through the kernel."""
        pages, kv_heads, page_size, _ = self.k_cache.shape
        slots = list(range(pages * page_size))
        rows = [cache.transpose(1, 2).flatten(0, 1) for cache in (self.k_cache, self.v_cache)]
        k, v = (side.nan_to_num().contiguous() for side in rows)
        k8, v8 = torch.empty(2, *self.k_cache.shape, dtype=torch.int8)
        k_scales, v_scales = torch.empty(2, pages, kv_heads, page_size)
        store(k, v, k8, v8, slots, (k_scales, v_scales))
        return replace(
            self,
            k_cache=k8 * k_scales[..., None],
            v_cache=v8 * v_scales[..., None],
            int8=(k8, v8, k_scales, v_scales),
        )

    def alone(self, i: int) -> "Call":
        """Sequence `i` as a batch of its own."""
        return replace(
            self,
            q=torch.split_with_sizes(self.q, self.queries)[i].clone(),
            queries=[self.queries[i]],
            contexts=[self.contexts[i]],
            page_tables=[self.page_tables[i]],
        )


def starts(counts: list[int]) -> bytes:
    """Ranges of consecutive parts, packed."""
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return pack(sums)


def store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: list[int],
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """`store_kv` of tensors."""
    pages, kv_heads, page_size, head_dim = k_cache.shape
    _core.store_kv(
        k.data_ptr(),
        v.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        pack(slots),
        scales=None if scales is None else (scales[0].data_ptr(), scales[1].data_ptr()),
        kv_heads=kv_heads,
        head_dim=head_dim,
        pages=pages,
        page_size=page_size,
    )


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within the rounding of float32."""
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6)
