"""The decoder against `transformers`: same logits for every head layout, in one go and through pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from appliance.errors import ModelError
from appliance.model.attention import (
    Backend,
    reference_attention,
    torch_attention,
)
from appliance.model.config import read_config
from appliance.model.cpu_attention import CpuAttention
from appliance.model.decoder import Decoder, load_model
from appliance.model.kv_cache import KVDtype
from appliance.model.manifest import fingerprint
from appliance.model.weight_form import WeightDtype
from appliance.model.weights import load_weights
from tests.model_fixtures import tiny_model, write_directory, write_tiny_llama
from tests.unit.model.steps import Piece, step

TOLERANCE = 1e-4
PAGE_SIZE = 4
CPU = torch.device("cpu")
BACKENDS = [CpuAttention, torch_attention, reference_attention]


def decoder_of(directory: Path, backend: Backend) -> Decoder:
    config = read_config(directory)
    weights = load_weights(directory, config, CPU)
    return Decoder(config, weights, fingerprint="test", device=CPU, backend=backend)


def expected_logits(directory: Path, token_ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def prompt(tokens: int, seed: int = 1) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 260, (tokens,), generator=random).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fields",
    [
        {"kv_heads": 1},
        {"kv_heads": 2, "tie": False},
        {"kv_heads": 4, "rope_theta": 500000.0},
        {"kv_heads": 2, "head_dim": 32},
    ],
)
def test_logits_are_those_of_transformers(
    tmp_path: Path, backend: Backend, fields: dict[str, Any]
) -> None:
    write_tiny_llama(tmp_path, **fields)
    token_ids = prompt(40)
    decoder = decoder_of(tmp_path, backend)
    piece = Piece(token_ids=token_ids, start=0, pages=range(10))
    logits = decoder.forward(step([piece], page_size=PAGE_SIZE), decoder.new_cache(10, PAGE_SIZE))
    torch.testing.assert_close(logits, expected_logits(tmp_path, token_ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_chunks_and_decode_steps_through_scattered_pages_give_the_logits_of_one_pass(
    tmp_path: Path, backend: Backend, kv_heads: int
) -> None:
    write_tiny_llama(tmp_path, kv_heads=kv_heads)
    first, second = prompt(23), prompt(14, seed=2)
    decoder = decoder_of(tmp_path, backend)
    cache = decoder.new_cache(16, PAGE_SIZE)
    pages = {"first": [9, 2, 14, 0, 7, 5], "second": [3, 11, 1, 8]}
    got: dict[str, list[torch.Tensor]] = {"first": [], "second": []}
    # Prefill in ragged chunks beside each other, then both decode, one token a step.
    schedule = [(5, 1), (6, 7), (1, 3), (8, 1), (1, 1), (1, 1), (1, 0)]
    starts = {"first": 0, "second": 0}
    for counts in schedule:
        pieces, names = [], []
        for name, token_ids, count in zip(pages, (first, second), counts, strict=True):
            if count:
                new = token_ids[starts[name] : starts[name] + count]
                pieces.append(Piece(token_ids=new, start=starts[name], pages=pages[name]))
                names += [name] * count
                starts[name] += count
        logits = decoder.forward(step(pieces, page_size=PAGE_SIZE), cache)
        for name, row in zip(names, logits, strict=True):
            got[name].append(row)
    for name, token_ids in (("first", first), ("second", second)):
        assert starts[name] == len(token_ids)
        want = expected_logits(tmp_path, token_ids)
        torch.testing.assert_close(torch.stack(got[name]), want, atol=TOLERANCE, rtol=0)


def test_only_the_rows_asked_for_get_logits(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    decoder = load_model(tmp_path, "cpu", None)
    whole = step([Piece(token_ids=prompt(6), start=0, pages=[0, 1])], page_size=PAGE_SIZE)
    some = step([Piece(token_ids=prompt(6), start=0, pages=[0, 1])], page_size=PAGE_SIZE)
    object.__setattr__(some, "logit_rows", torch.tensor([5, 2]))
    cache = decoder.new_cache(2, PAGE_SIZE)
    torch.testing.assert_close(decoder.forward(some, cache), decoder.forward(whole, cache)[[5, 2]])


def test_copied_rows_serve_a_second_sequence(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    decoder = load_model(tmp_path, "cpu", None)
    cache = decoder.new_cache(4, PAGE_SIZE)
    shared, tail = prompt(3), prompt(4, seed=3)
    decoder.forward(step([Piece(token_ids=shared, start=0, pages=[2])], page_size=PAGE_SIZE), cache)
    cache.copy_rows(2, 1, 3)
    logits = decoder.forward(
        step([Piece(token_ids=tail, start=3, pages=[1, 3])], page_size=PAGE_SIZE), cache
    )
    want = expected_logits(tmp_path, shared + tail)[3:]
    torch.testing.assert_close(logits, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_are_widened_to_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    write_directory(tmp_path, tiny_model(tie=False), dtype=dtype, shards=3)
    token_ids = prompt(12)
    decoder = load_model(tmp_path, "cpu", None)
    piece = Piece(token_ids=token_ids, start=0, pages=range(3))
    logits = decoder.forward(step([piece], page_size=PAGE_SIZE), decoder.new_cache(3, PAGE_SIZE))
    torch.testing.assert_close(logits, expected_logits(tmp_path, token_ids), atol=TOLERANCE, rtol=0)


def test_the_fingerprint_follows_weights_and_config(tmp_path: Path) -> None:
    def name_of(folder: str, **fields: Any) -> str:
        return load_model(write_tiny_llama(tmp_path / folder, **fields), "cpu", None).fingerprint

    base = name_of("base")
    assert base == name_of("same")
    assert base != name_of("weights", seed=1)
    assert base != name_of("rope", rope_theta=20000.0)


def test_forms_of_one_model_never_share_a_fingerprint(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    weight_dtypes: tuple[WeightDtype, ...] = ("float32", "int8")
    kv_dtypes: tuple[KVDtype, ...] = ("float16", "int8")
    names = [
        load_model(tmp_path, "cpu", None, weight_dtype=weights, kv_dtype=elements).fingerprint
        for weights in weight_dtypes
        for elements in kv_dtypes
    ]
    assert len({*names, fingerprint(tmp_path)}) == 5
    assert load_model(tmp_path, "cpu", None).fingerprint == names[0]


def test_a_batch_that_does_not_fit_the_cache_is_a_bug_and_is_caught(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    decoder = load_model(tmp_path, "cpu", None)
    cache = decoder.new_cache(2, PAGE_SIZE)
    bad = step([Piece(token_ids=prompt(6), start=0, pages=[0, 2])], page_size=PAGE_SIZE)
    with pytest.raises(AssertionError):
        decoder.forward(bad, cache)
    short = step([Piece(token_ids=prompt(2), start=3, pages=[0, 1])], page_size=PAGE_SIZE)
    object.__setattr__(short, "page_tables", short.page_tables[:4])
    with pytest.raises(AssertionError):
        decoder.forward(short, cache)


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:99x", ""])
def test_an_unknown_device_is_refused(tmp_path: Path, name: str) -> None:
    write_tiny_llama(tmp_path)
    with pytest.raises(ModelError, match="use auto, cpu or cuda"):
        load_model(tmp_path, name, None)


def test_a_gpu_that_is_not_there_is_told_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match=r"cuda:2.*2 GPUs"):
        load_model(tmp_path, "cuda:2", None)
