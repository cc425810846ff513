"""Compares a form of a model with its float32 on a text: perplexity, agreement. Never: reads text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder
from appliance.model.kv_cache import KVCache
from appliance.tokens import pack

WINDOW_TOKENS = 512
"""Each window starts with an empty context, as llama.cpp's perplexity tables do."""

CHUNK_TOKENS = 64
"""A window is computed in chunks, so that later ones read the K/V of earlier ones from the cache."""

PAGE_SIZE = 16

TOKENS_MIN = 2
"""A token is predicted from at least one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How close a form of a model is to its float32.

    `tokens`: positions compared. Perplexities are exp of the mean negative log-likelihood (natural
    log) of the text's own next token. `top1`: share of positions whose likeliest next token is the
    same. `divergence`: mean Kullback-Leibler divergence of the form from float32, in nats a token.
    `logit_difference`: the largest absolute one.
    """

    tokens: int
    float32_perplexity: float
    perplexity: float
    top1: float
    divergence: float
    logit_difference: float


def compare(
    reference: Decoder,
    form: Decoder,
    token_ids: Sequence[int],
    *,
    kv_dtype: torch.dtype,
    progress: Callable[[float], None],
) -> Agreement:
    """Run both over windows of a text of at least `TOKENS_MIN` tokens.

    `reference` keeps float32 keys and values, `form` those of `kv_dtype`; both may be one decoder. A
    window starts with the model's beginning token where it has one, as its chats do. `progress` gets
    fractions from 0 to 1.
    """
    assert len(token_ids) >= TOKENS_MIN
    pages = -(-WINDOW_TOKENS // PAGE_SIZE)
    expected_cache = reference.new_cache(pages, PAGE_SIZE)
    actual_cache = form.new_cache(pages, PAGE_SIZE, kv_dtype)
    totals = _Totals()
    windows = _windows(token_ids, reference.config.bos_id, reference.config.context_tokens)
    for number, window in enumerate(windows):
        for start in range(0, len(window) - 1, CHUNK_TOKENS):
            stop = min(start + CHUNK_TOKENS, len(window) - 1)
            totals.add(
                _logits(reference, expected_cache, window, start, stop),
                _logits(form, actual_cache, window, start, stop),
                torch.tensor(window[start + 1 : stop + 1]),
            )
        progress((number + 1) / len(windows))
    return totals.result()


def _windows(token_ids: Sequence[int], bos_id: int | None, context_tokens: int) -> list[list[int]]:
    """Pieces of the text, each behind the beginning token; the last token of each is only predicted."""
    prefix = [] if bos_id is None else [bos_id]
    size = min(WINDOW_TOKENS, context_tokens) + 1 - len(prefix)
    pieces = [[*prefix, *token_ids[at : at + size]] for at in range(0, len(token_ids), size)]
    return [piece for piece in pieces if len(piece) >= TOKENS_MIN]


def _logits(
    decoder: Decoder, cache: KVCache, window: list[int], start: int, stop: int
) -> torch.Tensor:
    """Float32 [stop - start, vocab] on the CPU; what lies before `start` is in the cache."""
    pages = -(-stop // PAGE_SIZE)
    batch = StepBatch(
        token_ids=torch.tensor(window[start:stop]),
        positions=torch.arange(start, stop),
        slots=pack(range(start, stop)),
        query_starts=pack([0, stop - start]),
        context_lens=pack([stop]),
        page_tables=pack(range(pages)),
        page_starts=pack([0, pages]),
        logit_rows=torch.arange(stop - start),
    )
    return decoder.forward(batch, cache).cpu()


class _Totals:
    """Sums over positions."""

    def __init__(self) -> None:
        self._tokens = 0
        self._same = 0
        self._expected_loss = 0.0
        self._actual_loss = 0.0
        self._divergence = 0.0
        self._difference = 0.0

    def add(self, expected: torch.Tensor, actual: torch.Tensor, targets: torch.Tensor) -> None:
        """Logits float32 [positions, vocab] of both, and the text's next tokens int64 [positions]."""
        self._tokens += len(targets)
        self._same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        self._difference = max(self._difference, float((expected - actual).abs().max()))
        likely, likely_here = (logits.double().log_softmax(-1) for logits in (expected, actual))
        places = torch.arange(len(targets))
        self._expected_loss -= float(likely[places, targets].sum())
        self._actual_loss -= float(likely_here[places, targets].sum())
        self._divergence += float((likely.exp() * (likely - likely_here)).sum())

    def result(self) -> Agreement:
        return Agreement(
            tokens=self._tokens,
            float32_perplexity=math.exp(self._expected_loss / self._tokens),
            perplexity=math.exp(self._actual_loss / self._tokens),
            top1=self._same / self._tokens,
            divergence=self._divergence / self._tokens,
            logit_difference=self._difference,
        )
