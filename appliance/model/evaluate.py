"""Compares two forms of one model on a text: perplexity and agreement. Never: reads or tokenizes text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache

WINDOW_TOKENS = 512
"""Each window starts with an empty context, as in the usual perplexity tables of llama.cpp."""

CHUNK_TOKENS = 64
"""A window is computed in chunks, so that later ones read the K/V of earlier ones from the cache."""

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How close a form of a model is to its reference.

    `tokens`: positions compared. Perplexities are exp of the mean negative log-likelihood (natural log)
    of the text's own next token. `top1`: share of positions whose likeliest next token is the same.
    `divergence`: mean Kullback-Leibler divergence of the form from the reference, in nats a token.
    `logit_difference`: the largest absolute one.
    """

    tokens: int
    reference_perplexity: float
    perplexity: float
    top1: float
    divergence: float
    logit_difference: float


def compare(
    reference: Decoder,
    form: Decoder,
    token_ids: list[int],
    *,
    progress: Callable[[float], None],
) -> Agreement:
    """Run both over windows of the text; at least two tokens. `progress` gets fractions from 0 to 1."""
    assert len(token_ids) >= 2
    size = min(WINDOW_TOKENS, reference.config.context_tokens)
    caches = [decoder.new_cache(-(-size // PAGE_SIZE), PAGE_SIZE) for decoder in (reference, form)]
    totals = _Totals()
    for start in range(0, len(token_ids) - 1, size):
        window = token_ids[start : start + size]
        # The last position of the text has no next token to predict; that of a window has one.
        targets = token_ids[start + 1 : start + 1 + size]
        rows = zip(_logits(reference, caches[0], window), _logits(form, caches[1], window), strict=True)
        for place, (expected, actual) in zip(range(0, len(window), CHUNK_TOKENS), rows, strict=True):
            wanted = torch.tensor(targets[place : place + CHUNK_TOKENS], dtype=torch.int64)
            if len(wanted) > 0:
                totals.add(expected[: len(wanted)].cpu(), actual[: len(wanted)].cpu(), wanted)
        progress(min(1.0, (start + size) / len(token_ids)))
    return totals.result()


def _logits(decoder: Decoder, cache: KVCache, window: list[int]) -> Iterator[torch.Tensor]:
    """Float32 [chunk, vocab] of each chunk of a window, in order."""
    for start in range(0, len(window), CHUNK_TOKENS):
        stop = min(start + CHUNK_TOKENS, len(window))
        pages = -(-stop // PAGE_SIZE)
        yield decoder.forward(
            StepBatch(
                token_ids=torch.tensor(window[start:stop], dtype=torch.int64),
                positions=torch.arange(start, stop),
                slots=np.arange(start, stop, dtype=np.uint32).tobytes(),
                query_starts=np.array([0, stop - start], dtype=np.uint32).tobytes(),
                context_lens=np.array([stop], dtype=np.uint32).tobytes(),
                page_tables=np.arange(pages, dtype=np.uint32).tobytes(),
                page_starts=np.array([0, pages], dtype=np.uint32).tobytes(),
                logit_rows=torch.arange(stop - start),
            ),
            cache,
        )


class _Totals:
    """Sums over positions."""

    def __init__(self) -> None:
        self._tokens = 0
        self._same = 0
        self._reference_loss = 0.0
        self._loss = 0.0
        self._divergence = 0.0
        self._difference = 0.0

    def add(self, reference: torch.Tensor, form: torch.Tensor, targets: torch.Tensor) -> None:
        """Logits float32 [positions, vocab] of both, and the text's next tokens int64 [positions]."""
        expected, actual = reference.log_softmax(-1), form.log_softmax(-1)
        places = torch.arange(len(targets))
        self._tokens += len(targets)
        self._same += int((reference.argmax(-1) == form.argmax(-1)).sum())
        self._reference_loss -= float(expected[places, targets].double().sum())
        self._loss -= float(actual[places, targets].double().sum())
        self._divergence += float((expected.exp() * (expected - actual)).double().sum())
        self._difference = max(self._difference, float((reference - form).abs().max()))

    def result(self) -> Agreement:
        return Agreement(
            tokens=self._tokens,
            reference_perplexity=math.exp(self._reference_loss / self._tokens),
            perplexity=math.exp(self._loss / self._tokens),
            top1=self._same / self._tokens,
            divergence=self._divergence / self._tokens,
            logit_difference=self._difference,
        )
