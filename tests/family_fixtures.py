"""Small random models of every family, made and saved by `transformers`: the oracle of ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from tests.model_fixtures import tokenizer_json, vocabulary

PLAIN: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
GEMMA = {**PLAIN, "head_dim": 16, "num_key_value_heads": 1}
FALCON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
BIGCODE: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **PLAIN},
    "llama, biased": {"model_type": "llama", **PLAIN, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", **PLAIN, "sliding_window": 8},
    "mistral, no window": {"model_type": "mistral", **PLAIN, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **PLAIN, "tie_word_embeddings": True},
    "qwen2, window": {
        "model_type": "qwen2",
        **PLAIN,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **PLAIN, "head_dim": 32},
    "qwen3, biased": {
        "model_type": "qwen3",
        **PLAIN,
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma": {"model_type": "gemma", **GEMMA},
    "gemma2": {
        "model_type": "gemma2",
        **GEMMA,
        "num_key_value_heads": 2,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "sliding_window": 8,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **GEMMA,
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
    },
    "falcon, multi-query": {"model_type": "falcon", **FALCON, "bias": True},
    "falcon, serial": {"model_type": "falcon", **FALCON, "parallel_attn": False},
    "falcon, multi-head": {"model_type": "falcon", **FALCON, "multi_query": False},
    "falcon, grouped": {
        "model_type": "falcon",
        **FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 96,
    },
    "falcon, grouped, one norm": {
        "model_type": "falcon",
        **FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
        "tie_word_embeddings": False,
    },
    "gpt_bigcode": {"model_type": "gpt_bigcode", **BIGCODE},
    "gpt_bigcode, multi-head": {
        "model_type": "gpt_bigcode",
        **BIGCODE,
        "multi_query": False,
        "n_inner": 160,
        "scale_attn_weights": False,
    },
}

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, own factors": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 0.7,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
    },
    "yarn, mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.8,
        "mscale_all_dim": 0.3,
    },
}
"""`rope_parameters`, without theta."""


def random_model(*, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A model in eager attention, the only one that does soft-caps, with all its weights random."""
    fields = {"vocab_size": len(vocabulary()), "bos_token_id": 1, "eos_token_id": 2, **fields}
    fields.setdefault("pad_token_id", 0)
    config = AutoConfig.for_model(**fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=random) * 0.2
            # Norms near what they do at rest: a factor of 1, which gemma stores as 0.
            is_factor = parameter.ndim == 1 and name.endswith("weight")
            offset = is_factor and not fields["model_type"].startswith("gemma")
            parameter.copy_(values + 1 if offset else values)
    return model.eval()


def save_model(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    """`save_pretrained`, with a tokenizer beside it."""
    logging.disable_progress_bar()
    model.save_pretrained(directory, **options)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return directory


def prompt(tokens: int, seed: int = 1) -> list[int]:
    """Random ids."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 260, (tokens,), generator=random).tolist()


def whole_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """`transformers`' logits of one pass over all tokens."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


@cache
def family_model(name: str) -> PreTrainedModel:
    """A model of `FAMILIES`, made once."""
    return random_model(**FAMILIES[name])
