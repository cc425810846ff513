"""Step batches from plain lists, as an engine would build them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.tokens import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one sequence that a step computes: `token_ids` from position `start` on."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]


def step(pieces: Sequence[Piece], *, page_size: int) -> StepBatch:
    """One batch of all pieces; logits are wanted for every token."""
    positions = [p.start + offset for p in pieces for offset in range(len(p.token_ids))]
    slots = [
        piece.pages[position // page_size] * page_size + position % page_size
        for piece in pieces
        for position in range(piece.start, piece.start + len(piece.token_ids))
    ]
    return StepBatch(
        token_ids=torch.tensor([token for piece in pieces for token in piece.token_ids]),
        positions=torch.tensor(positions),
        slots=pack(slots),
        query_starts=pack(accumulate((len(piece.token_ids) for piece in pieces), initial=0)),
        context_lens=pack(piece.start + len(piece.token_ids) for piece in pieces),
        page_tables=pack(page for piece in pieces for page in piece.pages),
        page_starts=pack(accumulate((len(piece.pages) for piece in pieces), initial=0)),
        logit_rows=torch.arange(len(positions)),
    )


def stepwise(decoder: Decoder, token_ids: list[int], counts: Sequence[int]) -> torch.Tensor:
    """Logits of all tokens, computed `counts` tokens at a time and then one at a time."""
    page_size, left = 4, list(counts)
    pages = list(range(-(-len(token_ids) // page_size)))[::-1]
    cache = decoder.new_cache(len(pages), page_size)
    rows, start = [], 0
    while start < len(token_ids):
        count = left.pop(0) if left else 1
        piece = Piece(token_ids=token_ids[start : start + count], start=start, pages=pages)
        rows.append(decoder.forward(step([piece], page_size=page_size), cache))
        start += count
    return torch.cat(rows)
