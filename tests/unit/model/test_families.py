"""Every family against `transformers`: same logits, through chunks, decode steps and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from appliance.model.decoder import Decoder, load_model
from tests.family_fixtures import (
    FAMILIES,
    SCALINGS,
    family_model,
    prompt,
    random_model,
    save_model,
    whole_logits,
)
from tests.unit.model.steps import Piece, step

TOLERANCE = 1e-4
PAGE_SIZE = 4


def stepwise(decoder: Decoder, token_ids: list[int], counts: list[int]) -> torch.Tensor:
    """Logits of all tokens, computed `counts` tokens at a time and then one at a time."""
    pages = list(range(-(-len(token_ids) // PAGE_SIZE)))[::-1]
    cache = decoder.new_cache(len(pages), PAGE_SIZE)
    rows, start = [], 0
    while start < len(token_ids):
        count = counts.pop(0) if counts else 1
        piece = Piece(token_ids=token_ids[start : start + count], start=start, pages=pages)
        rows.append(decoder.forward(step([piece], page_size=PAGE_SIZE), cache))
        start += count
    return torch.cat(rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_logits_are_those_of_transformers_in_prefill_and_decode(
    tmp_path: Path, name: str
) -> None:
    model = family_model(name)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    token_ids = prompt(40)
    want = whole_logits(model, token_ids)
    got = stepwise(decoder, token_ids, [40])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
    got = stepwise(decoder, token_ids, [11, 3, 14])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "dynamic"])
def test_a_scaled_rotation_gives_the_logits_of_transformers_past_the_original_length(
    tmp_path: Path, name: str
) -> None:
    rope: dict[str, Any] = {"rope_theta": 10000.0, **SCALINGS[name]}
    model = random_model(**FAMILIES["llama"], rope_parameters=rope)
    decoder = load_model(save_model(model, tmp_path), "cpu", None)
    token_ids = prompt(60)
    want = whole_logits(model, token_ids)
    torch.testing.assert_close(stepwise(decoder, token_ids, [29]), want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_in_int8_is_near_itself_in_float32(tmp_path: Path, name: str) -> None:
    directory = save_model(family_model(name), tmp_path)
    token_ids = prompt(40)
    want = stepwise(load_model(directory, "cpu", None), token_ids, [40])
    form = load_model(directory, "cpu", None, weight_dtype="int8")
    whole = stepwise(form, token_ids, [40])
    assert cosine_similarity(whole, want).min() > 0.98
    # Attention's last bits depend on the chunk; at an edge they move an activation by one number.
    got = stepwise(form, token_ids, [11, 3])
    torch.testing.assert_close(got, whole, atol=20 * TOLERANCE, rtol=0)
