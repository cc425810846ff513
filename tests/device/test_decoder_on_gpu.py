"""The decoder on a GPU gives the CPU's logits. Runs where there is a GPU: pytest -m device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from appliance.model.decoder import load_model
from tests.model_fixtures import tiny_model, write_directory
from tests.unit.model.steps import Piece, step

PAGE_SIZE = 4
TOLERANCE = 1e-3


@pytest.mark.device
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_gpu_gives_the_logits_of_the_cpu_for_a_prompt_and_a_decode_step(
    tmp_path: Path, kv_heads: int
) -> None:
    assert torch.cuda.is_available(), "this test was asked for on a machine without a GPU"
    directory = write_directory(tmp_path / "m", tiny_model(kv_heads=kv_heads))
    prompt = step([Piece(token_ids=range(5, 15), start=0, pages=[7, 2, 5])], page_size=PAGE_SIZE)
    decode = step([Piece(token_ids=[20], start=10, pages=[7, 2, 5])], page_size=PAGE_SIZE)
    logits = []
    for device in ("cpu", "cuda"):
        decoder = load_model(directory, device, threads=None)
        cache = decoder.new_cache(pages=8, page_size=PAGE_SIZE)
        logits.append([decoder.forward(batch, cache).cpu() for batch in (prompt, decode)])
    for on_cpu, on_gpu in zip(*logits, strict=True):
        assert torch.allclose(on_cpu, on_gpu, atol=TOLERANCE, rtol=0)
