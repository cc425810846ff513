"""Attention over paged K/V: back ends behind one signature. Never: projections, rotation.

Here are the one that gathers pages on any device and the slow reference; `cpu_attention` and
`cuda_attention` read pages in place.
A back end is a function `(batch, cache, heads) -> Attend`. It prepares what all layers of one step
share; the `Attend` it returns is called once per layer: it writes the new K/V into their slots and
gives each query the softmax-weighted values of the positions up to its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn.functional import scaled_dot_product_attention

from appliance.model.batch import StepBatch
from appliance.model.kv_cache import KVCache
from appliance.tokens import unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What attention needs to know about a layer.

    kv_layer: the layer of the cache it reads; stores: whether its k and v go there first, or those of
    an earlier layer of the step are there already; scale: factor of the products; window: how many
    positions a query sees, its own among them, None for all; softcap: products x become
    softcap * tanh(x / softcap).
    """

    kv_layer: int
    scale: float
    stores: bool = True
    window: int | None = None
    softcap: float | None = None


Attend: TypeAlias = Callable[
    [LayerAttention, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]
"""(layer, q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]) -> like q; float32.

k and v of a layer that does not store are not looked at.
"""

Backend: TypeAlias = Callable[[StepBatch, KVCache, int], Attend]


def torch_attention(batch: StepBatch, cache: KVCache, heads: int) -> Attend:
    """Gathers pages and calls torch's fused attention; any device.

    Sequences with the same number of new tokens (all decodes, for one) are computed together, their
    contexts padded to the longest.
    """
    device = cache.data.device
    _, _, _, kv_heads, page_size, head_dim = cache.data.shape
    slots = _indices(batch.slots, device)
    pages, rows = slots // page_size, slots % page_size
    groups = [_Group(batch, members, page_size, device) for members in _by_new_tokens(batch)]
    queries_per_key = heads // kv_heads

    def attend(
        layer: LayerAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if layer.stores:
            cache.store(layer.kv_layer, pages, rows, k, v)
        out = torch.empty_like(q)
        for group in groups:
            # [members, new, kv_heads, queries_per_key, dim] -> queries of one key head side by side,
            # so that K and V are never repeated.
            members, new = group.token_rows.shape
            query = q[group.token_rows].view(members, new, kv_heads, queries_per_key, head_dim)
            query = query.permute(0, 2, 3, 1, 4).reshape(members, kv_heads, -1, head_dim)
            # What a masked row holds still counts where it is not finite, and a page that was used
            # before may hold anything past the context.
            keys, values = (
                side.transpose(1, 2).flatten(2, 3).masked_fill(group.unwritten, 0.0)
                for side in cache.gather(layer.kv_layer, group.page_table)
            )
            mask = group.mask(layer.window).repeat(1, 1, queries_per_key, 1)
            result = _mixed(query, keys, values, mask, layer)
            result = result.view(members, kv_heads, queries_per_key, new, head_dim)
            out[group.token_rows] = result.permute(0, 3, 1, 2, 4).flatten(2, 3)
        return out

    return attend


def _mixed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    layer: LayerAttention,
) -> torch.Tensor:
    """Softmax-weighted values; torch's fused function where there is no soft-cap."""
    if layer.softcap is None:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=layer.scale)
    scores = query @ keys.transpose(-1, -2) * (layer.scale / layer.softcap)
    scores = scores.tanh_().mul_(layer.softcap).masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1) @ values


class _Group:
    """Index tensors of sequences that have the same number of new tokens.

    token_rows: int64 [members, new]; page_table: int64 [members, pages], short ones padded with
    page 0; unwritten: bool [members, 1, pages * page_size, 1], True past the end of a context.
    """

    def __init__(
        self, batch: StepBatch, members: list[int], page_size: int, device: torch.device
    ) -> None:
        query_starts, page_starts = unpack(batch.query_starts), unpack(batch.page_starts)
        contexts, page_ids = unpack(batch.context_lens), unpack(batch.page_tables)
        pages = max(-(-contexts[member] // page_size) for member in members)
        table = torch.zeros(len(members), pages, dtype=torch.int64)
        rows, last_positions = [], []
        for index, member in enumerate(members):
            used = -(-contexts[member] // page_size)
            first = page_starts[member]
            table[index, :used] = torch.tensor(list(page_ids[first : first + used]))
            start, stop = query_starts[member], query_starts[member + 1]
            rows.append(range(start, stop))
            last_positions.append(range(contexts[member] - (stop - start), contexts[member]))
        self.token_rows = torch.tensor([list(row) for row in rows], device=device)
        self.page_table = table.to(device)
        query_positions = torch.tensor([list(row) for row in last_positions], device=device)
        key_positions = torch.arange(pages * page_size, device=device)
        self._back = query_positions[:, None, :, None] - key_positions
        self._masks = dict[int | None, torch.Tensor]()
        lengths = torch.tensor([contexts[member] for member in members], device=device)
        self.unwritten = (key_positions >= lengths[:, None])[:, None, :, None]

    def mask(self, window: int | None) -> torch.Tensor:
        """Bool [members, 1, new, pages * page_size], True where a query may look."""
        if window not in self._masks:
            mask = self._back >= 0
            self._masks[window] = mask if window is None else mask & (self._back < window)
        return self._masks[window]


def _by_new_tokens(batch: StepBatch) -> list[list[int]]:
    starts = unpack(batch.query_starts)
    groups: dict[int, list[int]] = defaultdict(list)
    for member in range(len(starts) - 1):
        groups[starts[member + 1] - starts[member]].append(member)
    return list(groups.values())


def _indices(packed: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(packed), dtype=torch.uint32).to(torch.int64).to(device)


def reference_attention(batch: StepBatch, cache: KVCache, heads: int) -> Attend:
    """Slow and obvious: one query of one head at a time, in float64. The other two equal it."""
    _, _, _, kv_heads, page_size, _ = cache.data.shape
    slots, page_ids = unpack(batch.slots), unpack(batch.page_tables)
    query_starts, page_starts = unpack(batch.query_starts), unpack(batch.page_starts)
    contexts = unpack(batch.context_lens)

    def attend(
        layer: LayerAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        for token, slot in enumerate(slots if layer.stores else []):
            at = torch.tensor([slot])
            cache.store(
                layer.kv_layer, at // page_size, at % page_size, k[token, None], v[token, None]
            )
        k_cache, v_cache = cache.gather(layer.kv_layer, torch.arange(cache.pages))
        out = torch.empty_like(q)
        for sequence, context in enumerate(contexts):
            start, stop = query_starts[sequence], query_starts[sequence + 1]
            table = page_ids[page_starts[sequence] : page_starts[sequence + 1]]
            for token in range(start, stop):
                visible = context - (stop - token) + 1
                first = 0 if layer.window is None else max(0, visible - layer.window)
                where = [(table[p // page_size], p % page_size) for p in range(first, visible)]
                for head in range(heads):
                    key_head = head // (heads // kv_heads)
                    keys = torch.stack([k_cache[page, key_head, row] for page, row in where])
                    values = torch.stack([v_cache[page, key_head, row] for page, row in where])
                    scores = keys.double() @ q[token, head].double() * layer.scale
                    if layer.softcap is not None:
                        scores = (scores / layer.softcap).tanh() * layer.softcap
                    out[token, head] = (scores.softmax(0) @ values.double()).float()
        return out

    return attend
