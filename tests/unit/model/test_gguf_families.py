"""GGUF files of every family: written as llama.cpp does, converted, and loaded with the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from gguf import dequantize, quantize
from tokenizers import Tokenizer
from torch.nn.functional import cosine_similarity
from transformers import AutoModelForCausalLM

from appliance.errors import ModelError
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.gguf_reader import read_gguf
from appliance.model.gguf_tokenizer import build_tokenizer
from tests.family_fixtures import (
    FAMILIES,
    PLAIN,
    family_model,
    prompt,
    random_model,
    save_model,
    whole_logits,
)
from tests.gguf_fixtures import convert, write_family_gguf
from tests.unit.model.steps import Piece, step

TOLERANCE = 1e-4
TOKENS = 40

WITH_GGUF = [
    "llama",
    "llama, biased",
    "mistral, no window",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "falcon, grouped",
    "falcon, grouped, one norm",
    "gpt_bigcode",
]


def logits_of(directory: Path) -> torch.Tensor:
    decoder = load_model(directory, "cpu", None)
    pages = -(-TOKENS // 4)
    piece = Piece(token_ids=prompt(TOKENS), start=0, pages=range(pages))
    return decoder.forward(step([piece], page_size=4), decoder.new_cache(pages, 4))


@pytest.mark.parametrize("name", WITH_GGUF)
def test_a_converted_family_gives_the_logits_of_transformers_and_loads_there(
    tmp_path: Path, name: str
) -> None:
    model = family_model(name)
    target = convert(write_family_gguf(tmp_path / "m.gguf", model), tmp_path / "m")
    want = whole_logits(model, prompt(TOKENS))
    torch.testing.assert_close(logits_of(target), want, atol=TOLERANCE, rtol=0)
    again = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation="eager"
    )
    got = whole_logits(again, prompt(TOKENS))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", WITH_GGUF)
def test_a_familys_eight_bit_file_gives_the_logits_of_the_rounded_weights(
    tmp_path: Path, name: str
) -> None:
    model = random_model(**FAMILIES[name])
    exact = whole_logits(model, prompt(TOKENS))
    source = write_family_gguf(tmp_path / "m.gguf", model, kind=GGML.Q8_0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                blocks = quantize(parameter.numpy(), GGML.Q8_0)
                parameter.copy_(torch.from_numpy(dequantize(blocks, GGML.Q8_0)))
    want = whole_logits(model, prompt(TOKENS))
    assert (want - exact).abs().max() > 100 * TOLERANCE
    got = logits_of(convert(source, tmp_path / "m"))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_multi_query_falcon_without_biases_is_converted(tmp_path: Path) -> None:
    model = random_model(**FAMILIES["falcon, multi-query"] | {"bias": False})
    target = convert(write_family_gguf(tmp_path / "m.gguf", model), tmp_path / "m")
    want = whole_logits(model, prompt(TOKENS))
    torch.testing.assert_close(logits_of(target), want, atol=TOLERANCE, rtol=0)


# Rows of q and k, and their biases: case M06.


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "llama", "num_key_value_heads": 4},
        {"model_type": "llama", "num_key_value_heads": 2},
        {"model_type": "llama", "num_key_value_heads": 1},
        {"model_type": "llama", "num_key_value_heads": 2, "attention_bias": True},
        {"model_type": "qwen2", "num_key_value_heads": 2, "attention_bias": True},
    ],
)
def test_a_float16_file_says_what_the_safetensors_directory_says(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    model = random_model(**PLAIN | {"intermediate_size": 128} | fields)
    want = logits_of(save_model(model, tmp_path / "hf")).flatten()
    source = write_family_gguf(tmp_path / "m.gguf", model, kind=GGML.F16)
    got = logits_of(convert(source, tmp_path / "m")).flatten()
    assert cosine_similarity(got, want, dim=0) > 0.9999


# How words are split before they are encoded.


@pytest.mark.parametrize(
    ("name", "pre", "words"),
    [
        ("falcon, grouped", "falcon", ["costs", "Ġ", "123", "45", "!?", "Ġok"]),
        ("gpt_bigcode", "starcoder", ["costs", "Ġ", "1", "2", "3", "4", "5", "!?", "Ġok"]),
    ],
)
def test_a_familys_own_way_of_splitting_words_is_kept(
    tmp_path: Path, name: str, pre: str, words: list[str]
) -> None:
    source = write_family_gguf(tmp_path / "m.gguf", family_model(name), pre=pre)
    target = convert(source, tmp_path / "m")
    splitter = Tokenizer.from_file(str(target / "tokenizer.json")).pre_tokenizer
    assert [word for word, _ in splitter.pre_tokenize_str("costs 12345!? ok")] == words


# Rotations.


@pytest.mark.parametrize(
    ("rope", "fields"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear"}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 16},
        ),
    ],
)
def test_a_rope_scaling_in_the_metadata_is_kept(
    tmp_path: Path, rope: dict[str, Any], fields: dict[str, Any]
) -> None:
    model = random_model(**FAMILIES["llama"], rope_parameters={"rope_theta": 10000.0, **rope})
    fields = {"rope.scaling.factor": rope["factor"], **fields}
    source = write_family_gguf(tmp_path / "m.gguf", model, fields=fields)
    want = whole_logits(model, prompt(TOKENS))
    got = logits_of(convert(source, tmp_path / "m"))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def llama3_divisors(theta: float, factor: float, head_dim: int) -> Any:
    """As llama.cpp's converter computes them (conversion/llama.py)."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (index / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_divisors_of_llama_3_are_known_by_their_values(tmp_path: Path, factor: float) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    fields = {**FAMILIES["llama"], "max_position_embeddings": 16384, "rope_parameters": rope}
    model = random_model(**fields)
    divisors = llama3_divisors(500000.0, factor, 16)
    assert len(set(divisors.tolist())) > 2
    source = write_family_gguf(tmp_path / "m.gguf", model, rope_freqs=divisors)
    want = whole_logits(model, prompt(TOKENS))
    got = logits_of(convert(source, tmp_path / "m"))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
    unknown = write_family_gguf(tmp_path / "u.gguf", model, rope_freqs=divisors * 2)
    with pytest.raises(ModelError, match="is of no scaling that is known"):
        check_model(unknown)


# What a file may say otherwise.


def test_layers_with_a_window_may_be_listed(tmp_path: Path) -> None:
    model = random_model(
        **FAMILIES["gemma3"]
        | {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}
    )
    fields = {"attention.sliding_window_pattern": [False, True]}
    source = write_family_gguf(tmp_path / "m.gguf", model, fields=fields)
    want = whole_logits(model, prompt(TOKENS))
    got = logits_of(convert(source, tmp_path / "m"))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_what_a_gemma3_file_leaves_out_is_as_published(tmp_path: Path) -> None:
    model = random_model(**FAMILIES["gemma3"] | {"query_pre_attn_scalar": 16})
    absent = {"rope.freq_base": None, "attention.scale": None}
    source = write_family_gguf(tmp_path / "m.gguf", model, fields=absent)
    want = whole_logits(model, prompt(TOKENS))
    got = logits_of(convert(source, tmp_path / "m"))
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("llama", {"attention.sliding_window": 8}, "attention.sliding_window 8 is not supported"),
        ("llama", {"logit_scale": 2.0}, "logit_scale 2.0 is not supported"),
        ("llama", {"rope.scaling.attn_factor": 2.0}, "attn_factor 2.0 is not supported"),
        ("llama", {"rope.dimension_count": 8}, "rotates 8 of 16 dimensions"),
        ("qwen3", {"attention.value_length": 8}, "keys and values of different length"),
        ("gemma3", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping 2.0"),
        ("gemma3", {"attention.sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3", {"attention.sliding_window_pattern": [True]}, "sliding_window_pattern is"),
        ("llama", {"attention.head_count_kv": [2, 1]}, "llama.attention.head_count_kv is a list"),
        ("llama", {"logit_scale": [1.0, 2.0]}, "llama.logit_scale is a list"),
        ("llama", {"rope.scaling.factor": [1.0, 2.0]}, "llama.rope.scaling.factor is a list"),
        ("llama", {"rope.dimension_count": [16, 16]}, "llama.rope.dimension_count is a list"),
        ("llama", {"rope.scaling.type": ["a", "b"]}, "llama.rope.scaling.type is a list"),
        ("gpt_bigcode", {"attention.head_count_kv": 4}, "head_count_kv 4 is not supported: 1"),
    ],
)
def test_metadata_that_would_change_the_arithmetic_is_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], words: str
) -> None:
    source = write_family_gguf(tmp_path / "m.gguf", family_model(name), fields=fields)
    with pytest.raises(ModelError, match=words):
        check_model(source)


@pytest.mark.parametrize("name", ["model", "pre"])
def test_a_list_where_a_tokenizers_kind_belongs_is_refused(tmp_path: Path, name: str) -> None:
    gguf = read_gguf(write_family_gguf(tmp_path / "m.gguf", family_model("llama")))
    gguf = replace(gguf, metadata={**gguf.metadata, f"tokenizer.ggml.{name}": np.arange(2)})
    with pytest.raises(ModelError, match=r"array\(\[0, 1\]\) is not supported in GGUF"):
        build_tokenizer(gguf, "llama")


def test_biases_a_family_does_not_have_are_refused(tmp_path: Path) -> None:
    source = write_family_gguf(tmp_path / "m.gguf", family_model("falcon, multi-query"))
    with pytest.raises(ModelError, match=r"bias' is not one of a falcon model"):
        check_model(source)
