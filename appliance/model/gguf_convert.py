"""Conversion of a GGUF file into a float32 Hugging Face directory. Never: torch, downloads.

Tensor by tensor, so memory stays near the largest tensor; the directory appears under its name only
when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.gguf_model import GgufModel, Source, read_model
from appliance.model.manifest import file_sha256, write_manifest
from appliance.model.safetensors_reader import SINGLE_FILE
from appliance.model.shape import ModelConfig, Norm, QkvOrder

CHUNK_ELEMENTS = 2**24
DATA_ALIGNMENT = 64
"""The data starts on a cache line; the format itself asks for 8 bytes."""

Change: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]

FRACTION_WEIGHTS = 0.9
"""Share of the progress bar; the rest is digests and flushing to disk."""


def convert_gguf(source: Path, target: Path, progress: Callable[[float], None]) -> None:
    """Write `target`: model.safetensors, config, tokenizer and the manifest `appliance.json`.

    `progress` gets fractions from 0 to 1. An existing `target` is replaced at the end. Raises
    ModelError for a bad file and for a disk that is full; nothing is left behind then.
    """
    model = read_model(source)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        _write_weights(model, partial / SINGLE_FILE, lambda part: progress(FRACTION_WEIGHTS * part))
        _write_json(partial / "config.json", model.config_json)
        _write_json(partial / "generation_config.json", model.generation_json)
        _write_json(partial / "tokenizer.json", model.tokenizer.tokenizer_json)
        _write_json(partial / "tokenizer_config.json", model.tokenizer.config_json)
        write_manifest(partial, source_sha256=file_sha256(source))
        for path in (*partial.iterdir(), partial):
            _flush(path)
        _replace(partial, target)
        progress(1.0)
    except OSError as error:
        cause = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise ModelError(
            f"{target}: cannot be written: {cause} (the converted model needs "
            f"{_data_bytes(model) / 1e6:.0f} MB)"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(model: GgufModel, path: Path, progress: Callable[[float], None]) -> None:
    total, done = _data_bytes(model), 0
    with path.open("wb") as file, model.gguf.path.open("rb") as stored:
        file.write(_safetensors_header(model.sources))
        for source in model.sources:
            for chunk in _chunks(model.config, source, stored):
                file.write(chunk.data)
                done += chunk.nbytes
                progress(done / total)


def _data_bytes(model: GgufModel) -> int:
    return sum(4 * math.prod(source.shape) for source in model.sources)


def _safetensors_header(sources: tuple[Source, ...]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for source in sources:
        end = offset + 4 * math.prod(source.shape)
        header[source.name] = {
            "dtype": "F32",
            "shape": source.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-(8 + len(encoded)) % DATA_ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


def _chunks(config: ModelConfig, source: Source, file: BinaryIO) -> Iterator[NDArray[np.float32]]:
    """The tensor as float32, in pieces of rows; whole where its rows stand in another order."""
    tensor = source.tensor
    change = _change(config, source.role)
    rows, width = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    row_bytes = width // tensor.type.block * tensor.type.block_bytes
    step = rows if change else max(1, CHUNK_ELEMENTS // width)
    kind = GGMLQuantizationType(tensor.type.number)
    file.seek(tensor.offset)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        raw = np.frombuffer(file.read(count * row_bytes), dtype=np.uint8)
        chunk = dequantize(raw.reshape(count, row_bytes), kind)
        if change:
            chunk = change(chunk.reshape(tensor.shape))
        yield np.ascontiguousarray(chunk, dtype=np.float32)


def _change(config: ModelConfig, role: str) -> Change | None:
    """What undoes the change llama.cpp's converter made to tensors of a role (conversion/*.py)."""
    module = role.partition(".")[0]
    if config.family == "llama" and module in ("q", "k"):
        heads = config.heads if module == "q" else config.kv_heads
        return lambda rows: unpermute(rows, heads)
    if config.family == "falcon" and module == "qkv" and config.qkv_order is QkvOrder.GROUPED:
        return lambda rows: regroup(rows, config.heads, config.kv_heads)
    if config.norm is Norm.RMS_OFFSET and module.endswith("norm"):
        # The files hold the whole factor.
        return lambda weight: weight - np.float32(1)
    return None


def unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of q and k, [heads * head_dim, in] or their biases without `in`.

    llama.cpp rotates neighbouring pairs, Hugging Face rotates element i with i + head_dim / 2, so its
    converter stores row i of the first half and row i of the second half of each head side by side.
    """
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def regroup(rows: NDArray[np.float32], heads: int, kv_heads: int) -> NDArray[np.float32]:
    """Rows of all q, then k, then v, as falcon has them: each K/V head with its queries before it."""
    by_head = rows.reshape(heads + 2 * kv_heads, -1, *rows.shape[1:])
    q, k, v = np.split(by_head, [heads, heads + kv_heads])
    queries = q.reshape(kv_heads, heads // kv_heads, *q.shape[1:])
    return np.concatenate([queries, k[:, None], v[:, None]], axis=1).reshape(rows.shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(partial: Path, target: Path) -> None:
    """Put `partial` where `target` is; a reader sees the old one, none, or the new one."""
    old = target.with_name(f"{target.name}.old-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
