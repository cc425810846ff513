"""Where loaders of these families have gone wrong elsewhere: ties, gemma's details, fused rows."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file

from appliance import tokens
from appliance.config import EngineConfig
from appliance.engine.admission import RequestLimits, check_request
from appliance.engine.limits import fit_limits
from appliance.errors import ContextLengthExceeded, ModelError
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.gguf_convert import convert_gguf
from appliance.model.kv_cache import bytes_per_page
from appliance.model.linear import FloatLinear
from appliance.model.weights import load_weights
from appliance.server.failures import STATUS
from tests.family_fixtures import family_model, prompt, random_model, save_model, whole_logits
from tests.gguf_fixtures import write_family_gguf
from tests.unit.engine.sequences import request
from tests.unit.model.steps import stepwise

TOLERANCE = 1e-4

# Tie and head: case M01.

TIED_NAMES = {"llama": "model.embed_tokens.weight", "falcon": "transformer.word_embeddings.weight"}


@pytest.mark.parametrize(
    ("family", "tie", "head", "words"),
    [
        *(
            (family, tie, head, words)
            for family in TIED_NAMES
            for tie, head, words in (
                (True, "absent", None),
                (True, "same", None),
                (True, "different", "lm_head.weight differs from"),
                (False, "absent", "lm_head.weight is missing"),
                (False, "different", None),
            )
        ),
        ("llama", None, "absent", "lm_head.weight is missing"),
        ("llama", None, "different", None),
        ("falcon", None, "absent", None),
        ("falcon", None, "different", "lm_head.weight differs from"),
    ],
)
def test_tie_and_head_give_the_logits_of_transformers_or_are_refused(
    tmp_path: Path, family: str, tie: bool | None, head: str, words: str | None
) -> None:
    fields: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "llama":
        fields |= {"intermediate_size": 128}
    tied = head != "different"
    model = random_model(
        model_type=family, max_position_embeddings=256, tie_word_embeddings=tied, **fields
    )
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in tensors) == (head == "different")
    if head == "same":
        tensors["lm_head.weight"] = tensors[TIED_NAMES[family]].clone()
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    del config["tie_word_embeddings"]
    if tie is not None:
        config["tie_word_embeddings"] = tie
    (tmp_path / "config.json").write_text(json.dumps(config))
    if words is not None:
        with pytest.raises(ModelError, match=words) as caught:
            check_model(tmp_path)
        assert "tie_word_embeddings" in caught.value.message
        return
    token_ids = prompt(20)
    got = stepwise(load_model(tmp_path, "cpu", None), token_ids, [15])
    torch.testing.assert_close(got, whole_logits(model, token_ids), atol=TOLERANCE, rtol=0)


# Details of gemma: case M03.

GEMMA_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "sliding_window": 8,
    },
}


@pytest.mark.parametrize("name", GEMMA_CONFIGS)
@pytest.mark.parametrize("form", ["bfloat16", "float32", "gguf"])
def test_all_forms_of_gemma_give_the_logits_of_transformers(
    tmp_path: Path, name: str, form: str
) -> None:
    model = random_model(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=256,
        head_dim=16,
        **GEMMA_CONFIGS[name],
    )
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if name == "gemma" and key.endswith("norm.weight"):
                parameter.zero_()
            if name == "gemma2" and ("q_proj" in key or "k_proj" in key or "embed" in key):
                # Far past the caps, so that a missing one shows.
                parameter.mul_(4)
            parameter.copy_(parameter.bfloat16())
    if form == "gguf":
        source = write_family_gguf(tmp_path / "m.gguf", model)
        if name == "gemma":
            norms = [t for t in GGUFReader(source).tensors if t.name.endswith("norm.weight")]
            assert all((t.data == 1).all() for t in norms)
        directory = tmp_path / "converted"
        convert_gguf(source, directory, lambda fraction: None)
    elif form == "bfloat16":
        half = copy.deepcopy(model).to(torch.bfloat16)
        directory = save_model(half, tmp_path / "half")
    else:
        directory = save_model(model, tmp_path / "full")
    token_ids = prompt(40)
    want = whole_logits(model, token_ids)
    got = stepwise(load_model(directory, "cpu", None), token_ids, [33])
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)
    if name == "gemma2":
        assert got.abs().max() <= 3.0
        assert got.abs().max() > 2.5


# The fused rows of GPT BigCode and its learned positions: case M05.


@pytest.mark.parametrize(
    ("fields", "rows"),
    [({"n_inner": None, "multi_query": True}, 96), ({"n_inner": 160, "multi_query": False}, 192)],
)
def test_gpt_bigcode_splits_its_rows_by_its_heads(
    tmp_path: Path, fields: dict[str, Any], rows: int
) -> None:
    model = random_model(
        model_type="gpt_bigcode", n_embd=64, n_head=4, n_layer=2, n_positions=128, **fields
    )
    stored = model.state_dict()["transformer.h.0.attn.c_attn.weight"]
    assert len(stored) == rows
    directory = save_model(model, tmp_path)
    decoder = load_model(directory, "cpu", None)
    weights = load_weights(directory, decoder.config, decoder.device)
    if fields["multi_query"]:
        assert decoder.config.kv_heads == 1
        assert decoder.config.intermediate == 256
        qkv = weights.layers[0].qkv
        assert isinstance(qkv, FloatLinear)
        parts = [torch.split_with_sizes(tensor, [64, 16, 16]) for tensor in (qkv.weight, stored)]
        for got, want in zip(*parts, strict=True):
            assert torch.equal(got, want)
    token_ids = prompt(128)
    got = stepwise(decoder, token_ids, [100])
    torch.testing.assert_close(got, whole_logits(model, token_ids), atol=TOLERANCE, rtol=0)


def test_learned_positions_end_the_context(tmp_path: Path) -> None:
    model = random_model(model_type="gpt_bigcode", n_embd=64, n_head=4, n_layer=1, n_positions=128)
    config = read_config(save_model(model, tmp_path))
    limits = fit_limits(
        EngineConfig(kv_cache_bytes=2**24),
        model_context_tokens=config.context_tokens,
        bytes_per_page=bytes_per_page(config, 16),
        cores=1,
    )
    door = RequestLimits(
        vocab_size=config.vocab_size, context_tokens_max=limits.loop.context_tokens_max
    )

    def ask(count: int) -> None:
        token_ids = tokens.pack([1] * count)
        check_request(
            request(token_ids=token_ids, stretches=[(b"n", count)], new_tokens_max=1), door
        )

    ask(127)
    with pytest.raises(ContextLengthExceeded, match="128") as caught:
        ask(129)
    assert STATUS[caught.value.code] == 400


# Shards: case M08.


@pytest.mark.parametrize("name", ["falcon, grouped", "gemma3", "gpt_bigcode"])
def test_shards_of_any_family_are_read_and_a_lost_one_is_named(tmp_path: Path, name: str) -> None:
    model = family_model(name)
    directory = save_model(model, tmp_path, max_shard_size="60KB")
    shards = sorted(directory.glob("model-*-of-*.safetensors"))
    assert len(shards) > 2
    token_ids = prompt(20)
    got = stepwise(load_model(directory, "cpu", None), token_ids, [15])
    torch.testing.assert_close(got, whole_logits(model, token_ids), atol=TOLERANCE, rtol=0)
    stored = load_file(shards[1])
    renamed = {f"{name}_": tensor for name, tensor in stored.items()}
    save_file(renamed, shards[1], metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"{shards[1].name}: lacks '{next(iter(stored))}"):
        check_model(directory)
    shards[1].unlink()
    with pytest.raises(ModelError, match=f"{shards[1].name}: no such file"):
        check_model(directory)
