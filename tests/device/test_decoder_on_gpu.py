"""The decoder on a GPU beside the CPU's, in every form. Runs where there is a GPU: pytest -m device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from appliance.model.batch import StepBatch
from appliance.model.cuda_attention import reads_in_place
from appliance.model.decode_graphs import cuda_capture
from appliance.model.decoder import Decoder, load_model
from appliance.model.forms import WeightDtype
from appliance.model.kv_cache import KVCache
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.model.steps import Piece, step

pytestmark = pytest.mark.device

PAGE_SIZE = 16
BATCHES = [
    step([Piece(token_ids=range(5, 45), start=0, pages=[7, 2, 5])], page_size=PAGE_SIZE),
    step([Piece(token_ids=[20], start=40, pages=[7, 2, 5])], page_size=PAGE_SIZE),
    step(
        [
            Piece(token_ids=[21], start=41, pages=[7, 2, 5]),
            Piece(token_ids=range(9), start=0, pages=[1]),
        ],
        page_size=PAGE_SIZE,
    ),
]


def model(directory: Path, kv_heads: int = 1) -> Path:
    """Heads of 64, as kernels know them."""
    return write_directory(directory / "m", tiny_model(kv_heads=kv_heads, head_dim=64))


def run(decoder: Decoder, cache: KVCache, batches: list[StepBatch]) -> torch.Tensor:
    return torch.cat([decoder.forward(batch, cache).cpu() for batch in batches])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("weights", "kv", "limit"),
    [
        ("float32", torch.float32, 1e-3),
        ("float32", torch.int8, 0.2),
        ("bfloat16", torch.bfloat16, 0.3),
        ("int8", torch.bfloat16, 0.6),
    ],
)
def test_the_gpu_gives_the_logits_of_the_cpu_for_prompts_and_decode_steps(
    tmp_path: Path, kv_heads: int, weights: WeightDtype, kv: torch.dtype, limit: float
) -> None:
    directory = model(tmp_path, kv_heads)
    on_cpu = load_model(directory, "cpu", None)
    on_gpu = load_model(directory, "cuda", None, weight_dtype=weights)
    expected = run(on_cpu, on_cpu.new_cache(8, PAGE_SIZE), BATCHES)
    got = run(on_gpu, on_gpu.new_cache(8, PAGE_SIZE, kv), BATCHES)
    assert (got - expected).abs().max() < limit


def test_pages_in_place_give_what_gathered_pages_give(tmp_path: Path) -> None:
    decoder = load_model(model(tmp_path), "cuda", None)
    in_place = decoder.new_cache(8, PAGE_SIZE, torch.bfloat16)
    attention = decoder.attentions[0]
    if not reads_in_place(attention, in_place, decoder.config.heads):
        pytest.skip("this GPU's kernels do not take such pages; the log says why")
    gathered = decoder.new_cache(8, PAGE_SIZE)
    difference = run(decoder, in_place, BATCHES) - run(decoder, gathered, BATCHES)
    assert difference.abs().max() < 0.2


def test_a_captured_decode_gives_what_a_launched_one_gives(tmp_path: Path) -> None:
    decoder = load_model(model(tmp_path), "cuda", None)
    plain, captured = (decoder.new_cache(8, PAGE_SIZE, torch.bfloat16) for _ in range(2))
    decoder.capture_decodes(
        captured, cuda_capture(decoder.device), sequences_max=4, context_tokens_max=64
    )
    prompts = [
        step([Piece(token_ids=range(5, 40), start=0, pages=[7, 2, 5])], page_size=PAGE_SIZE),
        step([Piece(token_ids=range(60, 70), start=0, pages=[1])], page_size=PAGE_SIZE),
        step([Piece(token_ids=[80], start=0, pages=[3])], page_size=PAGE_SIZE),
    ]
    decodes = [
        step(
            [
                Piece(token_ids=[90 + place], start=35 + place, pages=[7, 2, 5]),
                Piece(token_ids=[92 + place], start=10 + place, pages=[1]),
                Piece(token_ids=[94 + place], start=1 + place, pages=[3]),
            ],
            page_size=PAGE_SIZE,
        )
        for place in range(3)
    ]
    expected = run(decoder, plain, prompts + decodes)
    difference = run(decoder, captured, prompts + decodes) - expected
    assert difference.abs().max() < 0.1
