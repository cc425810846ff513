"""The sampler against the definitions, written slowly in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.sampler import (
    Choice,
    History,
    adjusted,
    needs_history,
    probabilities,
    sample,
    uniform,
)
from appliance.wire.frames import Sampling

VOCAB = 40
CPU = torch.device("cpu")


def row(seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def choice(sampling: Sampling, *, seed: int = 1, position: int = 5) -> Choice:
    return Choice(sampling=sampling, seed=seed, position=position, history=None)


def pick(logits: torch.Tensor, made: Choice) -> int:
    (sampled,) = sample([logits], [made])
    assert sampled is not None
    return sampled.token_id


def expected_probabilities(scores: list[float], sampling: Sampling) -> list[float]:
    highest = max(scores)
    weights = [math.exp((score - highest) / sampling.temperature) for score in scores]
    total = sum(weights)
    weights = [weight / total for weight in weights]
    weights = [w if w >= sampling.min_p * max(weights) else 0.0 for w in weights]
    if sampling.top_k is not None and sampling.top_k < len(weights):
        threshold = sorted(weights, reverse=True)[sampling.top_k - 1]
        weights = [w if w >= threshold else 0.0 for w in weights]
    if sampling.top_p < 1:
        wanted, reached, threshold = sum(weights) * sampling.top_p, 0.0, 0.0
        for weight in sorted(weights, reverse=True):
            if reached >= wanted:
                break
            reached += weight
            threshold = weight
        weights = [w if w >= threshold else 0.0 for w in weights]
    total = sum(weights)
    return [weight / total for weight in weights]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.one_of(st.none(), st.integers(1, VOCAB + 3)),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_filters_leave_the_weights_of_their_definitions(
    seed: int, temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row(seed)
    weights = probabilities(logits, sampling)
    got = (weights / weights.sum()).tolist()
    assert got == pytest.approx(expected_probabilities(logits.tolist(), sampling), abs=1e-5)


def test_top_p_reaches_its_mass_when_the_distribution_is_flatter_than_the_first_guess() -> None:
    weights = probabilities(row(3, 5000) / 100, Sampling(top_p=0.9))
    kept = weights[weights > 0]
    assert 4300 < len(kept) < 4600
    assert float(kept.sum()) == pytest.approx(0.9, abs=1e-3)


def test_penalties_follow_their_definitions_and_bias_comes_last() -> None:
    logits = row(4)
    history = History([1, 2], vocab_size=VOCAB, device=CPU)
    for token_id in (2, 3, 3):
        history.add(token_id)
    sampling = Sampling(
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        logit_bias={3: 7.0, 9: -2.0},
    )
    expected = logits.tolist()
    for token_id in (1, 2, 3):
        value = expected[token_id]
        expected[token_id] = value / 1.5 if value > 0 else value * 1.5
    for token_id, count in {2: 1, 3: 2}.items():
        expected[token_id] -= 0.25 * count + 0.5
    expected[3] += 7.0
    expected[9] -= 2.0
    before = logits.clone()
    assert adjusted(logits, sampling, history).tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(logits, before), "the row is shared with the log-probabilities"


def test_only_penalties_need_a_history() -> None:
    assert not needs_history(Sampling(temperature=0.3, top_k=4, logit_bias={1: 1.0}))
    assert needs_history(Sampling(presence_penalty=0.1))
    assert needs_history(Sampling(frequency_penalty=-0.1))
    assert needs_history(Sampling(repetition_penalty=1.1))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-4])
def test_a_temperature_near_zero_takes_the_likeliest_token(temperature: float) -> None:
    for seed in range(20):
        logits = row(seed)
        assert pick(logits, choice(Sampling(temperature=temperature))) == int(logits.argmax())


def test_a_bias_of_a_hundred_forces_a_token_and_of_minus_a_hundred_forbids_it() -> None:
    logits = row(1)
    best = int(logits.argmax())
    assert pick(logits, choice(Sampling(temperature=0, logit_bias={7: 100.0}))) == 7
    banned = Sampling(logit_bias={best: -100.0})
    picks = {pick(logits, choice(banned, position=i)) for i in range(200)}
    assert best not in picks


def test_samples_follow_the_distribution() -> None:
    sampling = Sampling(temperature=0.8, top_k=6)
    logits = row(11)
    draws = 4000
    counts = Counter(pick(logits, choice(sampling, position=i)) for i in range(draws))
    expected = expected_probabilities(logits.tolist(), sampling)
    for token_id, probability in enumerate(expected):
        # Five standard deviations of a binomial.
        margin = 5 * math.sqrt(draws * probability * (1 - probability))
        assert abs(counts[token_id] - draws * probability) <= margin


def test_a_choice_does_not_depend_on_the_batch() -> None:
    settings_of_rows = [
        Sampling(temperature=0),
        Sampling(top_p=0.9),
        Sampling(temperature=1.5, min_p=0.05),
        Sampling(logit_bias={5: 4.0}, top_k=10),
    ]
    rows = [row(seed) for seed in range(4)]
    choices = [choice(sampling, seed=9, position=i) for i, sampling in enumerate(settings_of_rows)]
    together = sample(rows, choices)
    alone = [sample([r], [c])[0] for r, c in zip(rows, choices, strict=True)]
    backwards = sample(rows[::-1], choices[::-1])[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_gives_no_token_and_leaves_the_others_alone(bad: float) -> None:
    broken = row(2)
    broken[17] = bad
    sampled = sample([row(1), broken, row(3)], [choice(Sampling(seed=1))] * 3)
    assert sampled[1] is None
    assert sampled[0] == sample([row(1)], [choice(Sampling())])[0]
    assert sampled[2] == sample([row(3)], [choice(Sampling())])[0]


def test_log_probabilities_are_those_of_the_model_itself() -> None:
    logits = row(6)
    sampling = Sampling(temperature=0, logit_bias={8: 100.0}, logprobs=3)
    (sampled,) = sample([logits], [choice(sampling)])
    assert sampled is not None
    assert sampled.logprobs is not None
    reference = torch.log_softmax(logits, dim=-1)
    assert sampled.token_id == sampled.logprobs.token_id == 8
    assert sampled.logprobs.logprob == pytest.approx(float(reference[8]), abs=1e-6)
    best = reference.sort(descending=True)
    assert [token_id for token_id, _ in sampled.logprobs.top] == best.indices[:3].tolist()
    assert [value for _, value in sampled.logprobs.top] == best.values[:3].tolist()


def test_zero_alternatives_still_give_the_chosen_tokens_own() -> None:
    (sampled,) = sample([row(6)], [choice(Sampling(logprobs=0))])
    assert sampled is not None
    assert sampled.logprobs is not None
    assert sampled.logprobs.top == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    sampling: Sampling
    scale: float


@pytest.mark.parametrize(
    "extreme",
    [
        Extreme(sampling=Sampling(temperature=0.0001), scale=1e4),
        Extreme(sampling=Sampling(temperature=1e6), scale=1e4),
        Extreme(sampling=Sampling(top_p=1e-12), scale=1.0),
        Extreme(sampling=Sampling(min_p=1.0), scale=0.0),
        Extreme(sampling=Sampling(top_k=1, top_p=0.5, min_p=0.5), scale=0.0),
    ],
)
def test_extreme_settings_still_choose_a_token_with_weight(extreme: Extreme) -> None:
    for seed in range(20):
        logits = row(seed) * extreme.scale
        token_id = pick(logits, choice(extreme.sampling, seed=seed))
        assert probabilities(logits, extreme.sampling)[token_id] > 0


def test_uniform_numbers_are_reproducible_spread_out_and_below_one() -> None:
    numbers = [uniform(7, position) for position in range(2000)]
    assert numbers == [uniform(7, position) for position in range(2000)]
    assert all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.03)
    assert len(set(numbers)) == 2000
    assert uniform(1, 23) != uniform(12, 3)
