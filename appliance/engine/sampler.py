"""Chooses the next token from a row of logits. Never: knows of queues, pages or other requests.

A choice depends on the row, the request's own history and (seed, position), so the other requests of
a batch cannot change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from appliance.wire.frames import Sampling, TokenLogprobs

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: the quotient would overflow (vLLM's bound)."""

NUCLEUS_GUESS = 1024
"""Top-p first looks at this many tokens; only a flatter distribution pays for a full sort."""


class History:
    """Which tokens a request has seen and generated; held only where a penalty needs it."""

    def __init__(self, prompt: Sequence[int], *, vocab_size: int, device: torch.device) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self.seen[torch.tensor(list(prompt), dtype=torch.int64, device=device)] = True

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        self.seen[token_id] = True
        self.counts[token_id] += 1


def needs_history(sampling: Sampling) -> bool:
    """Whether a penalty looks at earlier tokens."""
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one row's choice depends on, besides its logits."""

    sampling: Sampling
    seed: int
    position: int
    history: History | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A chosen token."""

    token_id: int
    logprobs: TokenLogprobs | None


def sample(rows: Sequence[Tensor], choices: Sequence[Choice]) -> list[Sampled | None]:
    """Choose one token a row; a row: float32 [vocab]. None for a row that is not finite."""
    assert len(rows) == len(choices)
    if not rows:
        return []
    logits = torch.stack(list(rows))
    finite: list[bool] = torch.isfinite(logits).all(dim=-1).tolist()
    highest: list[int] = logits.argmax(dim=-1).tolist()
    sampled: list[Sampled | None] = []
    for row, choice in enumerate(choices):
        if not finite[row]:
            sampled.append(None)
            continue
        token_id = highest[row] if _plain_greedy(choice) else _choose(logits[row], choice)
        logprobs = _logprobs(logits[row], token_id, choice.sampling.logprobs)
        sampled.append(Sampled(token_id=token_id, logprobs=logprobs))
    return sampled


def adjusted(logits: Tensor, sampling: Sampling, history: History | None) -> Tensor:
    """Logits after penalties, then bias; float32 [vocab], a new tensor where anything changes."""
    scores = logits
    if history is not None:
        factor = sampling.repetition_penalty
        penalised = torch.where(scores > 0, scores / factor, scores * factor)
        scores = torch.where(history.seen, penalised, scores)
        scores = scores - sampling.frequency_penalty * history.counts
        scores = scores - sampling.presence_penalty * (history.counts > 0)
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64, device=logits.device)
        values = torch.tensor(
            list(sampling.logit_bias.values()), dtype=torch.float32, device=logits.device
        )
        scores = scores.clone()
        scores[ids] += values
    return scores


def probabilities(scores: Tensor, sampling: Sampling) -> Tensor:
    """Weights after temperature, min-p, top-k and top-p, in this order; float32 [vocab], not
    normalised. Tokens equal to the last one kept are kept too.
    """
    weights = torch.softmax((scores - scores.max()) / sampling.temperature, dim=-1)
    if sampling.min_p > 0:
        weights = weights.where(weights >= sampling.min_p * weights.max(), 0.0)
    if sampling.top_k is not None and sampling.top_k < weights.shape[0]:
        weights = weights.where(weights >= weights.topk(sampling.top_k).values[-1], 0.0)
    if sampling.top_p < 1:
        weights = weights.where(weights >= _nucleus_threshold(weights, sampling.top_p), 0.0)
    return weights


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (53 bits of BLAKE2b)."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def _plain_greedy(choice: Choice) -> bool:
    return (
        choice.sampling.temperature < GREEDY_BELOW
        and choice.history is None
        and not choice.sampling.logit_bias
    )


def _choose(logits: Tensor, choice: Choice) -> int:
    scores = adjusted(logits, choice.sampling, choice.history)
    if choice.sampling.temperature < GREEDY_BELOW:
        return int(scores.argmax())
    # Inverse transform over ids in order: one uniform number decides, whatever the filters left.
    cumulative = probabilities(scores, choice.sampling).double().cumsum(dim=0)
    target = cumulative[-1] * uniform(choice.seed, choice.position)
    index = int(torch.searchsorted(cumulative, target, right=True))
    if index < cumulative.shape[0]:
        return index
    # The product was rounded up to the total: the last token with any weight.
    return int(torch.searchsorted(cumulative, cumulative[-1]))


def _nucleus_threshold(weights: Tensor, top_p: float) -> Tensor:
    """The smallest weight among the fewest highest that together reach `top_p` of the total."""
    wanted = weights.sum(dtype=torch.float64) * top_p
    highest = weights.topk(min(NUCLEUS_GUESS, weights.shape[0])).values
    cumulative = highest.double().cumsum(dim=0)
    if cumulative[-1] < wanted and highest.shape[0] < weights.shape[0]:
        highest = weights.sort(descending=True).values
        cumulative = highest.double().cumsum(dim=0)
    index = int(torch.searchsorted(cumulative, wanted))
    return highest[min(index, highest.shape[0] - 1)]


def _logprobs(logits: Tensor, token_id: int, alternatives: int | None) -> TokenLogprobs | None:
    if alternatives is None:
        return None
    values = torch.log_softmax(logits, dim=-1)
    top = values.topk(min(alternatives, values.shape[0]))
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(values[token_id]),
        top=list(zip(top.indices.tolist(), top.values.tolist(), strict=True)),
    )
