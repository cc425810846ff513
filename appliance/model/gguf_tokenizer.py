"""A Hugging Face `tokenizer.json` rebuilt from GGUF metadata. Never: encoding text.

Only byte-level BPE vocabularies whose pre-tokenizer is known for certain are rebuilt; a guess would
give other token ids without any sign of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.fields import shown
from appliance.model.gguf_reader import Gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""`tokenizer.ggml.token_type` (llama.h, `llama_token_type`)."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Contents of `tokenizer.json` and `tokenizer_config.json`, and the ids the model config needs."""

    tokenizer_json: dict[str, Any]
    config_json: dict[str, Any]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None


def build_tokenizer(gguf: Gguf, architecture: str) -> TokenizerFiles:
    """Rebuild the tokenizer; raises ModelError when its kind is not known for certain."""
    metadata, path = gguf.metadata, gguf.path
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind != "gpt2":
        raise ModelError(
            f"{path}: tokenizer model {shown(kind)} is not supported in GGUF; supported: 'gpt2' "
            "(byte-level BPE); use the model's safetensors directory"
        )
    tokens = _tokens(gguf)
    added = _added_tokens(gguf, tokens)
    bos_id = _special_id(gguf, "bos_token_id", len(tokens))
    eos_ids = [
        token_id
        for name in ("eos_token_id", "eot_token_id")
        if (token_id := _special_id(gguf, name, len(tokens))) is not None
    ]
    if not eos_ids:
        raise ModelError(f"{path}: metadata field tokenizer.ggml.eos_token_id is missing")
    pad_id = _special_id(gguf, "padding_token_id", len(tokens))
    unknown_id = _special_id(gguf, "unknown_token_id", len(tokens))
    prefix = _prefix(gguf, tokens, bos_id)
    normalizer, pre_tokenizer, ignore_merges = _pre_tokenizer(gguf)
    tokenizer_json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": prefix,
        "decoder": _byte_level(use_regex=True) | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": tokens,
            "merges": _merges(gguf, tokens),
        },
    }
    names = list(tokens)
    named = {"bos": bos_id, "eos": eos_ids[0], "pad": pad_id, "unk": unknown_id}
    config_json: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{architecture}.context_length"),
        **{f"{name}_token": names[i] for name, i in named.items() if i is not None},
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config_json["chat_template"] = template
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        config_json=config_json,
        bos_id=bos_id,
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        pad_id=pad_id,
    )


def _tokens(gguf: Gguf) -> dict[str, int]:
    """Token -> id, in id order."""
    listed = gguf.metadata.get("tokenizer.ggml.tokens")
    embedding = gguf.tensors.get("token_embd.weight")
    if not isinstance(listed, list) or not listed:
        raise ModelError(f"{gguf.path}: metadata field tokenizer.ggml.tokens is missing")
    if embedding is not None and len(listed) > embedding.shape[0]:
        raise ModelError(
            f"{gguf.path}: {len(listed)} tokens, but only {embedding.shape[0]} embedding rows"
        )
    tokens = {token: index for index, token in enumerate(listed)}
    if len(tokens) != len(listed):
        raise ModelError(f"{gguf.path}: a token stands twice in tokenizer.ggml.tokens")
    return tokens


def _added_tokens(gguf: Gguf, tokens: dict[str, int]) -> list[dict[str, Any]]:
    """Control tokens as special, user-defined ones as plain added tokens."""
    types = gguf.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, np.ndarray) or types.shape != (len(tokens),):
        raise ModelError(
            f"{gguf.path}: tokenizer.ggml.token_type does not have one entry for each token"
        )
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for (token, index), kind in zip(tokens.items(), types.tolist(), strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _merges(gguf: Gguf, tokens: dict[str, int]) -> list[str]:
    merges = gguf.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelError(f"{gguf.path}: metadata field tokenizer.ggml.merges is missing")
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in tokens or right not in tokens or left + right not in tokens:
            raise ModelError(f"{gguf.path}: merge {shown(merge)} names a token that does not exist")
    return merges


def _special_id(gguf: Gguf, name: str, vocab_size: int) -> int | None:
    token_id = gguf.metadata.get(f"tokenizer.ggml.{name}")
    if token_id is None:
        return None
    if type(token_id) is not int or not 0 <= token_id < vocab_size:
        raise ModelError(f"{gguf.path}: tokenizer.ggml.{name} {shown(token_id)} is not a token id")
    return token_id


def _prefix(gguf: Gguf, tokens: dict[str, int], bos_id: int | None) -> dict[str, Any] | None:
    """The post-processor that puts the first token in front, where the model wants that."""
    if gguf.metadata.get("tokenizer.ggml.add_bos_token") is not True or bos_id is None:
        return None
    bos = list(tokens)[bos_id]
    special = {"SpecialToken": {"id": bos, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": n}} for n, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, {"SpecialToken": {"id": bos, "type_id": 1}}, second],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _pre_tokenizer(gguf: Gguf) -> tuple[dict[str, Any] | None, dict[str, Any], bool]:
    """(normalizer, pre-tokenizer, ignore_merges) of the kind the file names.

    As the original models' `tokenizer.json` have them: GPT-2, SmolLM2 and StarCoder, Falcon, Llama 3,
    Qwen2.
    """
    kind = gguf.metadata.get("tokenizer.ggml.pre")
    digits = {"type": "Digits", "individual_digits": True}
    known: dict[str, tuple[dict[str, Any] | None, dict[str, Any], bool]] = {
        "gpt-2": (None, _byte_level(use_regex=True), False),
        "smollm": (None, _sequence(digits, _byte_level(use_regex=True)), False),
        "starcoder": (None, _sequence(digits, _byte_level(use_regex=True)), False),
        "falcon": (
            None,
            _sequence(
                {"type": "Punctuation", "behavior": "Contiguous"},
                _byte_level(use_regex=True),
                digits | {"individual_digits": False},
                _split("[0-9][0-9][0-9]"),
            ),
            False,
        ),
        "llama-bpe": (
            None,
            _sequence(_split(_LLAMA3_SPLIT), _byte_level(use_regex=False)),
            True,
        ),
        "qwen2": (
            {"type": "NFC"},
            _sequence(_split(_QWEN2_SPLIT), _byte_level(use_regex=False)),
            False,
        ),
    }
    if not isinstance(kind, str) or kind not in known:
        raise ModelError(
            f"{gguf.path}: pre-tokenizer {shown(kind)} is not supported in GGUF; supported: "
            f"{', '.join(repr(name) for name in known)}; use the model's safetensors directory"
        )
    return known[kind]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
