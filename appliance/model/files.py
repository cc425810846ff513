"""The check of a model's files before anything loads. Never: torch, tensors' values, code or pickles.

Everything that can be known from headers and sizes is refused here, in well under a second, with
one line that names the file and the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.config import ModelConfig, read_config
from appliance.model.fields import read_json
from appliance.model.gguf_model import check_gguf, read_model
from appliance.model.layout import tensor_name, tensor_shapes
from appliance.model.safetensors_reader import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorEntry,
    model_tensors,
)

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
COMPARE_BYTES = 2**24


def check_model(path: Path) -> None:
    """Check a model directory (Hugging Face layout) or a .gguf file; raises ModelError."""
    with _readable(path):
        if path.suffix == ".gguf":
            check_gguf(path)
        else:
            _check_directory(path)


def read_shape(path: Path) -> ModelConfig:
    """The shape of a model directory, from its config alone, or of a .gguf file; raises ModelError."""
    with _readable(path):
        if path.suffix == ".gguf":
            return read_model(path).config
        return _directory_config(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{error.filename or path}: cannot be read: {error.strerror}") from error


def _directory_config(path: Path) -> ModelConfig:
    if not path.is_dir():
        problem = "not a model directory or .gguf file" if path.exists() else "no such file"
        raise ModelError(f"{path}: {problem}")
    return read_config(path)


def _check_directory(path: Path) -> None:
    config = _directory_config(path)
    _check_weight_files(path)
    _check_tensors(path, config, model_tensors(path, config.names))
    _check_tokenizer(path, config)


def _check_weight_files(directory: Path) -> None:
    """A directory without safetensors gets advice that fits what lies there instead."""
    if (directory / SINGLE_FILE).exists() or (directory / INDEX_FILE).exists():
        return
    others = sorted(item.name for item in directory.iterdir())
    pickles = [name for name in others if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        raise ModelError(
            f"{directory / pickles[0]}: pickle checkpoints are never opened, for they can run code; "
            "convert to safetensors"
        )
    if any(name.endswith(".gguf") for name in others):
        raise ModelError(f"{directory}: holds GGUF files; point the model path at the .gguf itself")
    raise ModelError(f"{directory / SINGLE_FILE}: no such file, and no {INDEX_FILE}")


def _check_tensors(directory: Path, config: ModelConfig, tensors: dict[str, TensorEntry]) -> None:
    wanted = tensor_shapes(config)
    lm_head = tensor_name(config, "lm_head.weight")
    for name, shape in wanted.items():
        if name in tensors:
            if tensors[name].shape != shape:
                raise ModelError(
                    f"{tensors[name].file}: {name} has shape {list(tensors[name].shape)}, "
                    f"config.json asks for {list(shape)}"
                )
        elif name == lm_head:
            raise ModelError(
                f"{directory}: {lm_head} is missing, and config.json does not say "
                "tie_word_embeddings: true"
            )
        else:
            raise ModelError(f"{directory}: {name} is in no weight file")
    if config.tie_embeddings and lm_head in tensors:
        embedding = tensor_name(config, "embedding.weight")
        _check_tied(embedding, tensors[embedding], tensors[lm_head])
    known = {*wanted, lm_head}
    for name, entry in tensors.items():
        if name not in known:
            raise ModelError(f"{entry.file}: {name} is not a tensor of this model family")


def _check_tied(name: str, embedding: TensorEntry, lm_head: TensorEntry) -> None:
    """With `tie_word_embeddings` a stored head is a copy; a different one means a wrong config."""
    same = (embedding.shape, embedding.dtype) == (lm_head.shape, lm_head.dtype)
    with embedding.file.open("rb") as left, lm_head.file.open("rb") as right:
        left.seek(embedding.offset)
        right.seek(lm_head.offset)
        remaining = embedding.nbytes
        while same and remaining:
            step = min(remaining, COMPARE_BYTES)
            same = left.read(step) == right.read(step)
            remaining -= step
    if not same:
        raise ModelError(
            f"{lm_head.file}: lm_head.weight differs from {name}, but config.json says "
            "tie_word_embeddings: true; set it to false if the head is its own"
        )


def _check_tokenizer(directory: Path, config: ModelConfig) -> None:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelError(
            f"{path}: no such file; other tokenizer formats are not read: "
            "save the model's fast tokenizer beside the weights"
        )
    tokenizer = read_json(path)
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    if not isinstance(model, dict):
        raise ModelError(f"{path}: not a tokenizer: it has no model")
    for token_id in _ids(model.get("vocab")) + _added_ids(tokenizer.get("added_tokens")):
        if type(token_id) is int and token_id >= config.vocab_size:
            raise ModelError(
                f"{path}: token id {token_id} is past the model's vocab_size {config.vocab_size}"
            )


def _ids(vocab: Any) -> list[Any]:
    return list(vocab.values()) if isinstance(vocab, dict) else []


def _added_ids(added: Any) -> list[Any]:
    if not isinstance(added, list):
        return []
    return [token.get("id") for token in added if isinstance(token, dict)]
