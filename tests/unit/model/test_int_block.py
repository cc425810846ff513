"""A layer in one call of the kernels: the bits of its steps, and nothing where something does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from appliance._core import IntLayer, IntMatrix
from appliance.model import decoder as decoder_module
from appliance.model.blocks import build_block
from appliance.model.decoder import Decoder, load_model
from appliance.model.int_block import IntBlock
from appliance.model.weight_form import WeightDtype
from appliance.tokens import pack
from tests.family_fixtures import FAMILIES, family_model, prompt, save_model
from tests.model_fixtures import write_tiny_llama
from tests.unit.model.steps import Piece, step, stepwise

PAGE_SIZE = 4
PAGES = 16
SCHEDULE = [(5, 1), (6, 7), (1, 3), (8, 1), (1, 1), (1, 1), (1, 0)]


def blocks(decoder: Decoder) -> list[object]:
    return [block for block, _ in decoder._blocks]


def run(decoder: Decoder, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Logits of prefills in ragged chunks, then of decodes; what the cache holds then."""
    random = torch.Generator().manual_seed(7)
    prompts = torch.randint(0, 260, (2, 24), generator=random).tolist()
    pages = ([9, 2, 14, 0, 7, 5], [3, 11, 1, 8])
    cache = decoder.new_cache(PAGES, PAGE_SIZE, dtype)
    starts = [0, 0]
    found = []
    for counts in SCHEDULE:
        pieces = []
        for index, count in enumerate(counts):
            if count:
                new = prompts[index][starts[index] : starts[index] + count]
                pieces.append(Piece(token_ids=new, start=starts[index], pages=pages[index]))
                starts[index] += count
        found.append(decoder.forward(step(pieces, page_size=PAGE_SIZE), cache))
    return found, cache.data


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("form", ["int8", "int12"])
@pytest.mark.parametrize("fields", [{"kv_heads": 1}, {"kv_heads": 2, "head_dim": 32}])
def test_a_layer_in_one_call_gives_the_bits_of_its_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    form: WeightDtype,
    dtype: torch.dtype,
) -> None:
    write_tiny_llama(tmp_path, **fields)
    fast = load_model(tmp_path, "cpu", None, weight_dtype=form)
    assert all(isinstance(block, IntBlock) for block in blocks(fast))
    monkeypatch.setattr(decoder_module, "build_fast_block", build_block)
    plain = load_model(tmp_path, "cpu", None, weight_dtype=form)
    assert not any(isinstance(block, IntBlock) for block in blocks(plain))
    (got, held), (expected, expected_held) = run(fast, dtype), run(plain, dtype)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(held, expected_held)
    assert torch.isfinite(got[-1]).all()


FAST = ("llama", "mistral", "qwen2", "gemma")
"""Families that the kernels have whole; the others have another flow, norms of heads, or soft-caps."""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_bits_of_its_steps_and_those_known_are_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    directory = save_model(family_model(name), tmp_path)
    fast = load_model(directory, "cpu", None, weight_dtype="int12")
    assert {isinstance(block, IntBlock) for block in blocks(fast)} == {name.split(",")[0] in FAST}
    monkeypatch.setattr(decoder_module, "build_fast_block", build_block)
    plain = load_model(directory, "cpu", None, weight_dtype="int12")
    got, expected = (stepwise(decoder, prompt(40), [11, 3, 14]) for decoder in (fast, plain))
    assert torch.equal(got, expected)


def test_float32_goes_step_by_step(tmp_path: Path) -> None:
    decoder = load_model(write_tiny_llama(tmp_path), "cpu", None)
    assert not any(isinstance(block, IntBlock) for block in blocks(decoder))


def matrix(outputs: int, inputs: int, *, gated: bool = False, filled: bool = True) -> IntMatrix:
    made = IntMatrix(outputs, inputs, bits=8, gated=gated)
    if filled:
        rows = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
        made.push_rows(rows.data_ptr(), outputs)
    return made


NORM = torch.ones(32)
TURNS = torch.tensor([[1.0, 0.0]] * 4).repeat(8, 1)


def turns(positions: torch.Tensor) -> tuple[int, int, int, int]:
    return positions.data_ptr(), TURNS.data_ptr(), 8, 4


def layer(**changed: Any) -> IntLayer:
    """Two query heads and one K/V head of 8, 32 wide, 16 in the MLP."""
    arguments: dict[str, Any] = {
        "qkv": matrix(32, 32),
        "output": matrix(32, 16),
        "gate": matrix(32, 32, gated=True),
        "down": matrix(32, 16),
        "norm": (NORM.data_ptr(), 1e-5),
        "mlp_norm": (NORM.data_ptr(), 1e-5),
        "activation": "silu",
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "scale": 0.3,
    }
    return IntLayer(**(arguments | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qkv": matrix(40, 32)}, "qkv does not give the heads"),
        ({"heads": 3}, "qkv does not give the heads"),
        ({"kv_heads": 2**62}, "qkv does not give the heads"),
        ({"output": matrix(32, 8)}, "output does not take the heads"),
        ({"output": matrix(31, 16)}, "output does not give the width of x"),
        ({"gate": matrix(32, 31, gated=True)}, "gate does not take x"),
        ({"gate": matrix(32, 32)}, "gate is not gated"),
        ({"down": matrix(32, 15)}, "down does not take what gate gives"),
        ({"down": matrix(31, 16)}, "down does not give the width of x"),
        ({"down": matrix(32, 16, filled=False)}, "rows"),
        ({"norm": (0, 1e-5)}, "address"),
        ({"mlp_norm": (NORM.data_ptr(), -1.0)}, "epsilon"),
        ({"activation": "relu"}, "activation"),
    ],
)
def test_a_layer_whose_matrices_do_not_fit_is_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": pack([0, 8])}, "slot 8"),
        ({"slots": pack([0])}, "query_starts does not end with the slots"),
        ({"query_starts": b""}, "query_starts does not end with the slots"),
        ({"query_starts": pack([0, 1, 2])}, "query_starts"),
        ({"context_lens": pack([1])}, "more queries than"),
        ({"page_tables": pack([2])}, "page 2"),
        ({"turns": torch.tensor([0, 8])}, "position 8"),
        ({"half": True, "scales": (4, 4)}, "scales"),
    ],
)
def test_a_call_that_does_not_fit_leaves_its_input_as_it_was(
    changed: dict[str, Any], message: str
) -> None:
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    k, v = torch.zeros(2, 2, 1, 4, 8)
    positions = torch.tensor([0, 1])
    arguments: dict[str, Any] = {
        "slots": pack([0, 1]),
        "query_starts": pack([0, 2]),
        "context_lens": pack([2]),
        "page_tables": pack([0]),
        "page_starts": pack([0, 1]),
        "pages": 2,
        "page_size": 4,
    }
    wrong_positions = changed.get("turns", positions)
    changed = {name: value for name, value in changed.items() if name != "turns"}
    run, addresses = layer().run, (x.data_ptr(), k.data_ptr(), v.data_ptr())
    with pytest.raises(ValueError, match=message):
        run(*addresses, turns(wrong_positions), **(arguments | changed))
    assert torch.equal(x, before)
    run(*addresses, turns(positions), **arguments)
    assert not torch.equal(x, before)
    assert torch.isfinite(x).all()


def test_no_rows_are_added_to_a_matrix_of_a_layer() -> None:
    qkv = matrix(32, 32)
    kept = layer(qkv=qkv)
    with pytest.raises(RuntimeError, match="in use"):
        qkv.set_bias(NORM.data_ptr())
    del kept
    qkv.set_bias(NORM.data_ptr())
