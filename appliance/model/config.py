"""The shape of a model, read from a Hugging Face `config.json`. Never: tensors, tokenizers, torch.

Only the llama family without scaled rotary embeddings is accepted. Everything that would change
the arithmetic and is not implemented is refused by name instead of being ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from appliance.errors import ModelError

JSON_BYTES_MAX = 64 * 2**20
SHOWN_CHARS_MAX = 100
LAYERS_MAX = 1024
DIMENSION_MAX = 2**24
"""No width, count or vocabulary of a real model comes near; products of two stay below 2**48."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers a llama decoder is built from.

    `heads` is a multiple of `kv_heads` (1 = multi-query); `head_dim` is even. `eos_ids` are the
    tokens that end a reply.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_tokens: int
    rope_theta: float
    rms_eps: float
    tie_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]


def shown(value: object) -> str:
    """A value from outside as one short line of a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises ModelError that names the file and what is wrong with it."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        if path.stat().st_size > JSON_BYTES_MAX:
            raise ModelError(f"{path}: larger than {JSON_BYTES_MAX >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if content.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path}: is a Git LFS pointer, not the file itself: run `git lfs pull`")
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error


def read_config(directory: Path) -> ModelConfig:
    """The config of a model directory; raises ModelError for what is missing or unsupported.

    `auto_map` is ignored: code in a model directory is never run.
    """
    path = directory / "config.json"
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise ModelError(f"{path}: not a JSON object")
    generation: Any = {}
    if (directory / "generation_config.json").exists():
        generation = read_json(directory / "generation_config.json")
        if not isinstance(generation, dict):
            raise ModelError(f"{directory / 'generation_config.json'}: not a JSON object")
    return parse_config(fields, generation, str(path))


def parse_config(fields: dict[str, Any], generation: dict[str, Any], source: str) -> ModelConfig:
    """`ModelConfig` from the fields of `config.json` and `generation_config.json`.

    `source` names the file in messages. Raises ModelError.
    """
    _refuse_unsupported(fields, source)
    numbers = _Numbers(fields, source)
    hidden = numbers.count("hidden_size")
    heads = numbers.count("num_attention_heads")
    kv_heads = numbers.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelError(
            f"{source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if fields.get("head_dim") is None and hidden % heads:
        raise ModelError(f"{source}: hidden_size {hidden} is not a multiple of {heads} heads")
    head_dim = numbers.count("head_dim", default=hidden // heads)
    if head_dim % 2:
        raise ModelError(f"{source}: head_dim {head_dim} is odd; rotary embeddings need pairs")
    vocab_size = numbers.count("vocab_size")
    eos = generation.get("eos_token_id", fields.get("eos_token_id"))
    bos = generation.get("bos_token_id", fields.get("bos_token_id"))
    bos_ids = _token_ids(bos, vocab_size, "bos_token_id", source)
    tie = fields.get("tie_word_embeddings", False)
    if not isinstance(tie, bool):
        raise ModelError(f"{source}: tie_word_embeddings is {shown(tie)}, not true or false")
    return ModelConfig(
        layers=numbers.count("num_hidden_layers", limit=LAYERS_MAX),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=numbers.count("intermediate_size"),
        vocab_size=vocab_size,
        context_tokens=numbers.count("max_position_embeddings", default=2048),
        rope_theta=_rope_theta(fields, source),
        rms_eps=numbers.positive("rms_norm_eps", default=1e-6),
        tie_embeddings=tie,
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=_token_ids(eos, vocab_size, "eos_token_id", source),
    )


def _refuse_unsupported(fields: dict[str, Any], source: str) -> None:
    family = fields.get("model_type")
    if family != "llama":
        raise ModelError(
            f"{source}: model_type {shown(family)} is not supported; supported: 'llama'"
        )
    architectures = fields.get("architectures")
    if architectures is not None and architectures != ["LlamaForCausalLM"]:
        raise ModelError(
            f"{source}: architectures {shown(architectures)} is not supported; "
            "supported: ['LlamaForCausalLM']"
        )
    for name in ("attention_bias", "mlp_bias", "rope_interleaved"):
        if fields.get(name):
            raise ModelError(f"{source}: {name} {shown(fields[name])} is not supported")
    if fields.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(
            f"{source}: hidden_act {shown(fields['hidden_act'])} is not supported: 'silu'"
        )
    if fields.get("quantization_config") is not None:
        raise ModelError(f"{source}: quantization_config is not supported; use unquantized weights")


def _rope_theta(fields: dict[str, Any], source: str) -> float:
    """`rope_theta` stands at the top (transformers 4) or inside `rope_parameters` (5)."""
    merged: dict[str, Any] = {"rope_theta": fields.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.get(name)
        if part is None:
            continue
        if not isinstance(part, dict):
            raise ModelError(f"{source}: {name} is not an object")
        kind = part.get("rope_type", part.get("type", "default"))
        if kind != "default":
            raise ModelError(
                f"{source}: {name} of type {shown(kind)} is not supported: only 'default'"
            )
        if part.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(f"{source}: partial_rotary_factor is not supported")
        merged = {**merged, **part}
    if merged["rope_theta"] is None:
        merged["rope_theta"] = 10_000.0
    return _Numbers(merged, source).positive("rope_theta")


def _token_ids(value: Any, vocab_size: int, name: str, source: str) -> tuple[int, ...]:
    """One id, a list of ids or null."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in values:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise ModelError(f"{source}: {name} {shown(token_id)} is not an id below {vocab_size}")
    return tuple(values)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)


class _Numbers:
    """Reads numbers out of JSON fields with the file and the field in every message."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self._fields = fields
        self._source = source

    def count(self, name: str, *, default: int | None = None, limit: int = DIMENSION_MAX) -> int:
        """A whole number from 1 to `limit`; null counts as absent."""
        value = self._fields.get(name)
        if value is None:
            value = default
        if type(value) is not int or not 1 <= value <= limit:
            raise ModelError(
                f"{self._source}: {name} is {shown(value)}, not a whole number from 1 to {limit}"
            )
        return value

    def positive(self, name: str, *, default: float | None = None) -> float:
        """A finite number above zero; null counts as absent."""
        value = self._fields.get(name)
        if value is None:
            value = default
        if not _is_number(value) or not (math.isfinite(value) and value > 0):
            raise ModelError(f"{self._source}: {name} is {shown(value)}, not a positive number")
        return float(value)
