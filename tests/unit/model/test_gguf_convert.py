"""Conversion of GGUF files: the same numbers, the same token ids, and whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from appliance.errors import ModelError
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.gguf_convert import convert_gguf
from appliance.model.manifest import fingerprint, read_manifest
from tests.gguf_fixtures import convert
from tests.model_fixtures import tiny_model, tokenizer_json, write_directory, write_gguf
from tests.unit.model.steps import Piece, step

TEXTS = [
    "hello world",
    " hello  hello\n\n\thello",
    "In 1999 there were 12,345 héllo's; don't!",
    "你好 🙂 👩‍👧 مرحبا",
    "<|im_start|>user\nhello<|im_end|>",
    "",
    "\x00\x7f \u00a0\u2028",
]


def logits_of(directory: Path) -> torch.Tensor:
    decoder = load_model(directory, "cpu", None)
    piece = Piece(token_ids=list(range(3, 43)), start=0, pages=range(3))
    return decoder.forward(step([piece], page_size=16), decoder.new_cache(3, 16))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_float32_file_gives_back_every_weight_of_every_head_layout(
    tmp_path: Path, kv_heads: int, tie: bool
) -> None:
    model = tiny_model(kv_heads=kv_heads, tie=tie)
    target = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "m")
    tensors = load_file(target / "model.safetensors")
    assert tensors.keys() == model.tensors.keys()
    for name, tensor in model.tensors.items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_float16_file_says_what_the_safetensors_directory_says(
    tmp_path: Path, kv_heads: int
) -> None:
    model = tiny_model(kv_heads=kv_heads)
    directory = write_directory(tmp_path / "hf", model)
    source = write_gguf(tmp_path / "m.gguf", model, kind=GGML.F16)
    want = logits_of(directory).flatten()
    got = logits_of(convert(source, tmp_path / "m")).flatten()
    assert torch.nn.functional.cosine_similarity(got, want, dim=0) > 0.9999


@pytest.mark.parametrize(
    "kind",
    [GGML.BF16, GGML.Q4_0, GGML.Q4_1, GGML.Q5_0, GGML.Q5_1, GGML.Q8_0],
)
def test_every_block_type_is_dequantised(tmp_path: Path, kind: GGML) -> None:
    model = tiny_model()
    tensors = load_file(
        convert(write_gguf(tmp_path / "m.gguf", model, kind=kind), tmp_path / "m")
        / "model.safetensors"
    )
    for name, tensor in model.tensors.items():
        if tensor.ndim == 2:
            want = gguf.dequantize(gguf.quantize(tensor.numpy(), kind), kind)
            np.testing.assert_array_equal(tensors[name].numpy(), want)


@pytest.mark.parametrize("kind", [GGML.Q2_K, GGML.Q3_K, GGML.Q4_K, GGML.Q5_K, GGML.Q6_K])
def test_k_quants_are_dequantised(
    tmp_path: Path, kind: GGML, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package cannot write these, so blocks of small bytes stand in for quantised weights.
    random = np.random.default_rng(0)

    def blocks(values: Any, kind: GGML) -> Any:
        if kind == GGML.F32:
            return values
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (*values.shape[:-1], values.shape[-1] // block * nbytes)
        return random.integers(0, 0x30, shape, dtype=np.uint8)

    monkeypatch.setattr(gguf, "quantize", blocks)
    model = tiny_model(hidden_size=256, intermediate_size=256, kv_heads=4)
    source = write_gguf(tmp_path / "m.gguf", model, kind=kind)
    tensors = load_file(convert(source, tmp_path / "m") / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    want = gguf.dequantize(stored["blk.1.ffn_up.weight"].data, kind)
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.up_proj.weight"].numpy(), want)


def test_the_result_loads_in_transformers_with_the_same_logits(tmp_path: Path) -> None:
    target = convert(write_gguf(tmp_path / "m.gguf", tiny_model()), tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        want = model(torch.arange(3, 43)[None]).logits[0]
    torch.testing.assert_close(logits_of(target), want, atol=1e-4, rtol=0)
    assert model.generation_config.eos_token_id == [2]


def test_the_rebuilt_tokenizer_gives_the_ids_of_the_original(tmp_path: Path) -> None:
    target = convert(write_gguf(tmp_path / "m.gguf", tiny_model()), tmp_path / "m")
    directory = write_directory(tmp_path / "hf", tiny_model())
    original = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rebuilt = AutoTokenizer.from_pretrained(target)
    for text in TEXTS:
        want = original.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text, add_special_tokens=False) == want
        assert rebuilt.decode(want) == original.decode(want, skip_special_tokens=False)
    assert (rebuilt.bos_token_id, rebuilt.eos_token_id) == (1, 2)
    messages = [{"role": "user", "content": "hello"}]
    rendered = rebuilt.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer_json()["pre_tokenizer"]["pretokenizers"][0]["type"] == "Digits"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokenizer.ggml.pre": "chatglm-bpe"}, "pre-tokenizer 'chatglm-bpe' is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer model 'llama' is not supported"),
        ({"tokenizer.ggml.eos_token_id": 100_000}, "eos_token_id 100000 is not a token id"),
    ],
)
def test_a_tokenizer_that_is_not_known_for_certain_is_refused(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model(), fields=fields)
    with pytest.raises(ModelError, match=words):
        check_model(source)


def test_a_converted_directory_is_known_by_its_manifest_until_it_is_damaged(
    tmp_path: Path,
) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    target = convert(source, tmp_path / "m")
    manifest = read_manifest(target)
    assert manifest is not None
    assert fingerprint(target) == manifest.fingerprint
    (target / "appliance.json").rename(tmp_path / "aside")
    assert fingerprint(target) == manifest.fingerprint
    (tmp_path / "aside").rename(target / "appliance.json")
    config = (target / "config.json").read_text()
    (target / "config.json").write_text(config.replace("10000.0", "20000.0"))
    assert read_manifest(target) is None
    convert(source, target)
    again = read_manifest(target)
    assert again is not None
    assert again.fingerprint == manifest.fingerprint


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(ModelError, match="cannot be written"):
            convert_gguf(source, tmp_path / "out" / "m", lambda fraction: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_rises_from_nothing_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    convert_gguf(source, tmp_path / "m", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 10
    assert os.listdir(tmp_path / "m") != []


def test_large_files_that_were_written_again_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.model.manifest.DIGEST_BYTES_MAX", 0)
    target = convert(write_gguf(tmp_path / "m.gguf", tiny_model()), tmp_path / "m")
    before = fingerprint(target)
    weights = target / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    with weights.open("r+b") as file:
        file.write(content)
    assert read_manifest(target) is None
    assert fingerprint(target) != before
