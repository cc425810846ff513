"""Reading `config.json`: what is accepted, what is refused, and by which words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ModelError
from appliance.model.config import parse_config, read_config
from tests.family_fixtures import FAMILIES, SCALINGS
from tests.model_fixtures import tiny_model


def parse(**fields: Any) -> Any:
    return parse_config({**tiny_model().config, **fields}, {}, "config.json")


def test_the_numbers_of_a_llama_config_are_read() -> None:
    config = parse(num_key_value_heads=1)
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (2, 64, 4, 1)
    assert (config.head_dim, config.intermediate, config.context_tokens) == (16, 128, 256)
    assert config.eos_ids == (2,)
    assert config.bos_id == 1


def test_an_absent_kv_head_count_means_multi_head_attention() -> None:
    assert parse(num_key_value_heads=None).kv_heads == 4


def test_rope_theta_is_read_from_both_places_it_may_stand_in() -> None:
    assert parse(rope_theta=5e5).per_layer[0].rope.theta == 5e5
    inside = {"rope_theta": 7e5, "rope_type": "default"}
    assert parse(rope_theta=None, rope_parameters=inside).per_layer[0].rope.theta == 7e5


def test_an_absent_tie_is_the_familys_default() -> None:
    fields = tiny_model().config
    del fields["tie_word_embeddings"]
    assert parse_config(fields, {}, "config.json").tie_embeddings is False


def test_several_end_tokens_come_from_the_generation_config() -> None:
    config = parse_config(tiny_model().config, {"eos_token_id": [2, 0]}, "config.json")
    assert config.eos_ids == (2, 0)


def test_remote_code_named_by_auto_map_is_ignored() -> None:
    assert parse(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}).layers == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope' are not supported"),
        ({"rope_scaling": {"type": "mrope"}}, "'mrope' are not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is None"),
        (
            {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 1}},
            "high_freq_factor 1.0 is not above low_freq_factor 4.0",
        ),
        ({"rope_scaling": {"type": "yarn", "truncate": "no"}}, "truncate is 'no'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": "yarn"}, "rope_scaling is not an object"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2},
            "head_dim 2 is too small for dynamic",
        ),
        ({"sliding_window": 8}, "sliding_window 8"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_size": 66}, "hidden_size 66 is not a multiple"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"rope_theta": "high"}, "rope_theta is 'high'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"eos_token_id": 10**6}, "eos_token_id 1000000"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)):
        parse(**fields)


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("mistral", {"sliding_window": -1}, "sliding_window is -1"),
        ("qwen2", {"max_window_layers": "all"}, "max_window_layers is 'all'"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "use_sliding_window is not true"),
        ("qwen3", {"layer_types": ["full_attention"]}, "not a list of 2 layers"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "layer_types has 'linear_attention'"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma", {"hidden_act": "silly"}, "hidden_act 'silly'"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
        ("gemma2", {"num_kv_shared_layers": 1}, "num_kv_shared_layers 1"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has rope_theta"),
        ("falcon, grouped", {"alibi": True}, "alibi True is not supported"),
        ("falcon, grouped", {"parallel_attn": False}, "parallel_attn false"),
        ("falcon, grouped", {"num_kv_heads": 3}, "num_kv_heads 3 does not fit"),
        ("falcon, multi-query", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2"),
        ("falcon, multi-head", {"num_kv_heads": 2}, "num_kv_heads 2 does not fit"),
        ("gpt_bigcode", {"add_cross_attention": True}, "add_cross_attention True"),
        ("gpt_bigcode", {"n_embd": 66}, "hidden_size 66 is not a multiple of 4 heads"),
    ],
)
def test_what_a_family_does_not_do_is_refused_by_name(
    family: str, fields: dict[str, Any], words: str
) -> None:
    base = {"vocab_size": 266, **FAMILIES[family]}
    assert parse_config(base, {}, "config.json").layers >= 2
    with pytest.raises(ModelError, match=re.escape(words)):
        parse_config(base | fields, {}, "config.json")


def test_an_absent_field_is_the_familys_default_and_null_is_none() -> None:
    def parsed(family: str, **fields: Any) -> Any:
        base = {"vocab_size": 266, **FAMILIES[family], **fields}
        return parse_config({k: v for k, v in base.items() if v != "absent"}, {}, "config.json")

    def windows(config: Any) -> list[int | None]:
        return [layer.window for layer in config.per_layer]

    assert windows(parsed("mistral", sliding_window="absent")) == [4096, 4096]
    assert windows(parsed("mistral", sliding_window=None)) == [None, None]
    capped = parsed("gemma2", attn_logit_softcapping="absent", final_logit_softcapping="absent")
    assert (capped.attention_softcap, capped.logit_softcap) == (50.0, 30.0)
    bare = parsed("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (bare.attention_softcap, bare.logit_softcap) == (None, None)
    assert windows(parsed("gemma2")) == [8, None]
    assert parsed("gemma2", head_dim="absent").head_dim == 256
    assert parsed("qwen3", head_dim="absent").head_dim == 128
    assert parsed("gemma3").per_layer[0].rope.theta == 10_000
    assert parsed("gemma3").per_layer[5].rope.theta == 1_000_000


@pytest.mark.parametrize(
    ("name", "context_tokens"),
    [("linear", 64), ("dynamic", 256), ("llama3", 64), ("yarn", 64)],
)
def test_a_scaling_reaches_as_far_as_its_config_says(name: str, context_tokens: int) -> None:
    def reached(**fields: Any) -> int:
        base = {"vocab_size": 266, **FAMILIES["llama"], "rope_scaling": SCALINGS[name], **fields}
        return parse_config(base, {}, "config.json").context_tokens

    assert reached() == context_tokens
    if name == "yarn":
        # Published configs also give the length before scaling as max_position_embeddings.
        assert reached(max_position_embeddings=16) == 64


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=words) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in caught.value.message


def test_a_damaged_generation_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_model().config))
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"generation_config\.json: not a JSON object"):
        read_config(tmp_path)
