"""The engine's door: what it refuses, and what a sequence starts with."""

from __future__ import annotations

import math

import pytest

from appliance import tokens
from appliance.engine.admission import RequestLimits, check_request, make_sequence
from appliance.engine.sequence import Sequence
from appliance.errors import ContextLengthExceeded, InvalidRequest
from appliance.wire.frames import Generate, Sampling
from tests.unit.engine.sequences import request

LIMITS = RequestLimits(vocab_size=100, context_tokens_max=32)


def made(generate: Generate) -> Sequence:
    check_request(generate, LIMITS)
    return make_sequence(
        generate,
        key=(1, "r"),
        ordinal=1,
        arrived_at=0.0,
        limits=LIMITS,
        model_fingerprint="f" * 8,
    )


def test_a_plain_request_passes() -> None:
    check_request(request(), LIMITS)


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("token_ids", {"token_ids": b"", "stretches": []}),
        ("token_ids", {"token_ids": b"\0\0\0"}),
        ("token_ids", {"token_ids": tokens.pack([1, 2, 100])}),
        ("closing", {"closing": tokens.pack([100])}),
        ("closing", {"closing": b"\0"}),
        ("stretches", {"stretches": [(b"n", 2)]}),
        ("stretches", {"stretches": [(b"n", 4), (b"m", -1)]}),
        ("stretches", {"stretches": []}),
        ("new_tokens_max", {"new_tokens_max": 0}),
        ("stop_token_ids", {"stop_token_ids": list(range(5000))}),
    ],
)
def test_a_malformed_request_is_refused_by_the_name_of_its_field(
    param: str, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request(**changes), LIMITS)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": -0.1},
        {"top_k": 0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"frequency_penalty": 1e9},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": math.nan},
        {"logit_bias": {100: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {99_999_999: 5.0}},
        {"logit_bias": {5: math.nan}},
        {"logit_bias": {5: 1e30}},
        {"logprobs": -1},
        {"logprobs": 21},
    ],
)
def test_a_sampling_value_out_of_range_is_refused_by_its_name(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request(sampling=Sampling(**changes)), LIMITS)  # type: ignore[arg-type]
    assert caught.value.param == next(iter(changes))


def test_the_last_id_of_the_vocabulary_passes_everywhere() -> None:
    check_request(
        request(token_ids=tokens.pack([0, 1, 99]), sampling=Sampling(logit_bias={99: -100.0})),
        LIMITS,
    )


def test_a_prompt_and_reply_over_the_context_are_refused_with_the_numbers() -> None:
    check_request(request(new_tokens_max=29), LIMITS)
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request(request(new_tokens_max=30), LIMITS)
    for number in ("32", "3", "30"):
        assert number in caught.value.message


def test_closing_tokens_past_the_context_are_left_out() -> None:
    assert tokens.count(made(request(new_tokens_max=10)).closing) == 2
    assert tokens.count(made(request(new_tokens_max=28)).closing) == 1
    assert tokens.count(made(request(new_tokens_max=29)).closing) == 0


def test_namespaces_begin_with_the_models_fingerprint_and_the_reply_stays_in_the_last() -> None:
    sequence = made(request(stretches=[(b"public", 2), (b"tenant", 1)]))
    assert sequence.stretches == [(b"ffffffffpublic", 2), (b"fffffffftenant", 1)]
    sequence.tokens.extend([7, 8])
    sequence.new_tokens = 2
    assert sequence.path_stretches == [(b"ffffffffpublic", 2), (b"fffffffftenant", 3)]


def test_a_seed_is_kept_and_without_one_each_request_gets_its_own() -> None:
    assert made(request(sampling=Sampling(seed=-3))).seed == -3
    assert made(request(sampling=Sampling(seed=2**64 - 1))).seed == 2**64 - 1
    assert made(request()).seed != made(request()).seed
