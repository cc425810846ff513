"""Perplexity and agreement, held against `transformers` and against one pass over each window."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder, load_model
from appliance.model.evaluate import Agreement, compare
from tests.family_fixtures import FAMILIES, prompt, random_model, save_model, whole_logits
from tests.unit.model.steps import Piece, step

TEXT = prompt(150)
WINDOWS = [TEXT[:64], TEXT[64:128], TEXT[128:]]
"""The tiny model's context is 64 tokens."""


def agreement(decoder: Decoder, dtype: torch.dtype) -> Agreement:
    return compare(decoder, decoder, TEXT, kv_dtype=dtype, progress=lambda done: None)


def one_pass(decoder: Decoder, token_ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    pages = range(-(-len(token_ids) // 4))
    batch: StepBatch = step([Piece(token_ids=token_ids, start=0, pages=pages)], page_size=4)
    return decoder.forward(batch, decoder.new_cache(len(pages), 4, dtype))


def test_perplexity_is_that_of_transformers_over_windows_behind_the_beginning_token(
    tmp_path: Path,
) -> None:
    model = random_model(**FAMILIES["llama"])
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    losses = [
        cross_entropy(
            whole_logits(model, [1, *window[:-1]]), torch.tensor(window), reduction="none"
        )
        for window in WINDOWS
    ]
    want = math.exp(torch.cat(losses).mean())
    got = agreement(decoder, torch.float32)
    assert got.tokens == len(TEXT)
    assert got.float32_perplexity == pytest.approx(want, rel=1e-4)
    assert got.perplexity == got.float32_perplexity
    assert (got.top1, got.divergence, got.logit_difference) == (1.0, 0.0, 0.0)


def test_what_int8_keys_and_values_change_is_measured_at_every_position(tmp_path: Path) -> None:
    model = random_model(**FAMILIES["llama"])
    with torch.no_grad():
        for layer in model.model.layers:
            # Sharp attention, so that rounded keys change much: the divergence is not symmetric then.
            layer.self_attn.q_proj.weight.mul_(6)
            layer.self_attn.k_proj.weight.mul_(6)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    inputs = [[1, *window[:-1]] for window in WINDOWS]
    full, small = (
        torch.cat([one_pass(decoder, window, dtype) for window in inputs])
        for dtype in (torch.float32, torch.int8)
    )
    got = agreement(decoder, torch.int8)
    assert got.logit_difference == pytest.approx((full - small).abs().max().item(), abs=1e-3)
    assert got.logit_difference > 0.1
    assert got.top1 == (full.argmax(-1) == small.argmax(-1)).double().mean()
    assert got.top1 < 1
    want = kl_div(
        small.log_softmax(-1), full.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    assert got.divergence == pytest.approx(want.item(), rel=1e-3)
    loss = cross_entropy(small, torch.tensor(TEXT))
    assert got.perplexity == pytest.approx(math.exp(loss), rel=1e-4)
    assert got.perplexity != got.float32_perplexity


def test_without_a_beginning_token_the_first_of_a_window_is_not_predicted(tmp_path: Path) -> None:
    model = random_model(**FAMILIES["llama"], bos_token_id=None)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    # A window then holds one token more, which is predicted from all 64 that the model can look at.
    windows = [TEXT[:65], TEXT[65:130], TEXT[130:]]
    fractions: list[float] = []
    got = compare(decoder, decoder, TEXT, kv_dtype=torch.float32, progress=fractions.append)
    assert got.tokens == len(TEXT) - 3
    losses = [
        cross_entropy(whole_logits(model, w[:-1]), torch.tensor(w[1:]), reduction="none")
        for w in windows
    ]
    assert got.perplexity == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-4)
    assert fractions == [1 / 3, 2 / 3, 1.0]
