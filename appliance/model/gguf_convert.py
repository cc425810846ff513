"""Conversion of a llama GGUF file into a float32 Hugging Face directory. Never: torch, downloads.

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
from typing import Any, BinaryIO

import msgspec
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.gguf_llama import LlamaGguf, read_llama
from appliance.model.gguf_reader import GgufTensor
from appliance.model.layout import tensor_shapes
from appliance.model.manifest import file_sha256, write_manifest
from appliance.model.safetensors_reader import SINGLE_FILE

CHUNK_ELEMENTS = 2**24
DATA_ALIGNMENT = 64
"""The data starts on a cache line; the format itself asks for 8 bytes."""

FRACTION_WEIGHTS = 0.9
"""Share of the progress bar; the rest is digests and flushing to disk."""


def convert_gguf(source: Path, target: Path, progress: Callable[[float], None]) -> None:
    """Write `target`: model.safetensors, config, tokenizer and the manifest `appliance.json`.

    `progress` gets fractions from 0 to 1. An existing `target` is replaced at the end. Raises
    ModelError for a bad file and for a disk that is full; nothing is left behind then.
    """
    llama = read_llama(source)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        _write_weights(llama, partial / SINGLE_FILE, lambda part: progress(FRACTION_WEIGHTS * part))
        _write_json(partial / "config.json", llama.config_json)
        _write_json(partial / "generation_config.json", llama.generation_json)
        _write_json(partial / "tokenizer.json", llama.tokenizer.tokenizer_json)
        _write_json(partial / "tokenizer_config.json", llama.tokenizer.config_json)
        write_manifest(partial, source_sha256=file_sha256(source))
        for path in (*partial.iterdir(), partial):
            _flush(path)
        _replace(partial, target)
        progress(1.0)
    except OSError as error:
        cause = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise ModelError(
            f"{target}: cannot be written: {cause} (the converted model needs "
            f"{_data_bytes(llama) / 1e6:.0f} MB)"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(llama: LlamaGguf, path: Path, progress: Callable[[float], None]) -> None:
    shapes = tensor_shapes(llama.config)
    total, done = _data_bytes(llama), 0
    with path.open("wb") as file, llama.gguf.path.open("rb") as source:
        file.write(_safetensors_header(shapes))
        for name in shapes:
            tensor = llama.gguf.tensors[llama.sources[name]]
            for chunk in _chunks(llama, name, tensor, source):
                file.write(chunk.data)
                done += chunk.nbytes
                progress(done / total)


def _data_bytes(llama: LlamaGguf) -> int:
    return sum(4 * math.prod(shape) for shape in tensor_shapes(llama.config).values())


def _safetensors_header(shapes: dict[str, tuple[int, ...]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-(8 + len(encoded)) % DATA_ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


def _chunks(
    llama: LlamaGguf, name: str, tensor: GgufTensor, source: BinaryIO
) -> Iterator[NDArray[np.float32]]:
    """The tensor's rows as float32, in pieces; q and k whole, in the order Hugging Face has them."""
    heads = None
    if name.endswith("q_proj.weight"):
        heads = llama.config.heads
    elif name.endswith("k_proj.weight"):
        heads = llama.config.kv_heads
    rows, width = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    row_bytes = width // tensor.type.block * tensor.type.block_bytes
    step = rows if heads else max(1, CHUNK_ELEMENTS // width)
    kind = GGMLQuantizationType(tensor.type.number)
    source.seek(tensor.offset)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        raw = np.frombuffer(source.read(count * row_bytes), dtype=np.uint8)
        chunk = dequantize(raw.reshape(count, row_bytes), kind).reshape(count, width)
        if heads:
            chunk = unpermute(chunk, heads)
        yield np.ascontiguousarray(chunk, dtype=np.float32)


def unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of q and k, [heads * head_dim, in].

    llama.cpp rotates neighbouring pairs, Hugging Face rotates element i with i + head_dim / 2, so its
    converter stores row i of the first half and row i of the second half of each head side by side.
    """
    out, width = rows.shape
    pairs = rows.reshape(heads, out // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(out, width)


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
