"""Where each tensor of a safetensors checkpoint lies, proved against the files' sizes. Never: the data.

Format: an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
then the data without holes (https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from appliance.errors import ModelError
from appliance.model.fields import read_json, shown
from appliance.model.names import TensorNames

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HEADER_BYTES_MAX = 100 * 2**20
LENGTH_BYTES = 8
NAME_CHARS_MAX = 512
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""The element types that are accepted."""

_CAUSES = {
    b"version https://git-lfs": "is a Git LFS pointer, not the file itself: run `git lfs pull`",
    b"PK\x03\x04": "is a zip or pickle checkpoint; convert it to safetensors",
    b"\x80": "is a pickle; convert it to safetensors",
    b"<": "is a web page, not a checkpoint; download it again",
    b"GGUF": "is a GGUF file; name it *.gguf and point the model path at it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: `dtype` is a key of `DTYPE_BYTES`, `offset` counts from the start of `file`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


_Size = Annotated[int, msgspec.Meta(ge=0)]


class _HeaderField(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as the header describes it; offsets are half open, from the start of the data."""

    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


def read_checkpoint(directory: Path) -> dict[str, TensorEntry]:
    """Every tensor of a model directory: of the shards its index names, else of the single file.

    Raises ModelError with the file and the cause.
    """
    if not (directory / INDEX_FILE).exists():
        return read_header(directory / SINGLE_FILE)
    weight_map = _read_index(directory / INDEX_FILE)
    tensors: dict[str, TensorEntry] = {}
    for file_name in sorted(set(weight_map.values())):
        for name, entry in read_header(directory / file_name).items():
            if name in tensors:
                raise ModelError(f"{entry.file}: {name} is in {tensors[name].file.name} as well")
            tensors[name] = entry
    for name, file_name in weight_map.items():
        if name not in tensors or tensors[name].file.name != file_name:
            raise ModelError(
                f"{directory / file_name}: lacks {shown(name)}, which {INDEX_FILE} puts there"
            )
    return tensors


def model_tensors(directory: Path, names: TensorNames) -> dict[str, TensorEntry]:
    """The tensors of `read_checkpoint` that a family may need, under the names it gives them."""
    tensors: dict[str, TensorEntry] = {}
    for stored, entry in read_checkpoint(directory).items():
        name = names.canonical(stored)
        if name in tensors:
            raise ModelError(f"{entry.file}: {stored} is there under another name as well")
        if name is not None:
            tensors[name] = entry
    return tensors


def checkpoint_files(directory: Path) -> list[Path]:
    """The weight files `read_checkpoint` reads, in a fixed order."""
    if not (directory / INDEX_FILE).exists():
        return [directory / SINGLE_FILE]
    return [directory / name for name in sorted(set(_read_index(directory / INDEX_FILE).values()))]


def _read_index(path: Path) -> dict[str, str]:
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: has no weight_map")
    for name, file_name in weight_map.items():
        plain = isinstance(file_name, str) and file_name == Path(file_name).name
        if not plain or not file_name.endswith(".safetensors"):
            raise ModelError(
                f"{path}: {shown(name)} is said to be in {shown(file_name)}, "
                "not a .safetensors file of this directory"
            )
    return weight_map


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file; reads the header only. Raises ModelError."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            header_bytes = _header_bytes(path, start, size)
            file.seek(LENGTH_BYTES)
            header = file.read(header_bytes)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        fields = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: damaged: its header is not valid JSON ({error})") from error
    fields.pop("__metadata__", None)
    for name in fields:
        if not name.isprintable() or len(name) > NAME_CHARS_MAX:
            raise ModelError(f"{path}: damaged: a tensor is named {shown(name)}")
    data_start = LENGTH_BYTES + header_bytes
    tensors = {name: _entry(path, name, value, data_start) for name, value in fields.items()}
    _check_tiling(path, tensors, data_start, size)
    return tensors


def _header_bytes(path: Path, start: bytes, size: int) -> int:
    """The length of the JSON header, or a ModelError that says what the file really is."""
    if size == 0:
        raise ModelError(f"{path}: the file is empty; download it again")
    for magic, cause in _CAUSES.items():
        if start.startswith(magic):
            # A header length may begin with any byte; only a whole header makes it one.
            length = int.from_bytes(start[:LENGTH_BYTES], "little")
            if start[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{" or length > size:
                raise ModelError(f"{path}: {cause}")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if size <= LENGTH_BYTES or start[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{":
        raise ModelError(f"{path}: not a safetensors file, or cut off ({size} bytes)")
    if length > HEADER_BYTES_MAX or LENGTH_BYTES + length > size:
        raise ModelError(
            f"{path}: damaged or cut off: says its header has {length} bytes, the file has {size}"
        )
    return length


def _entry(path: Path, name: str, raw: msgspec.Raw, data_start: int) -> TensorEntry:
    """One header field as a `TensorEntry`; its own numbers are checked, not yet its neighbours'."""
    where = f"{path}: {name}"
    try:
        field = msgspec.json.decode(raw, type=_HeaderField)
    except msgspec.DecodeError as error:
        raise ModelError(f"{where}: damaged header entry ({error})") from error
    if field.dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise ModelError(f"{where}: element type {shown(field.dtype)} is not supported: {known}")
    begin, end = field.data_offsets
    nbytes = math.prod(field.shape) * DTYPE_BYTES[field.dtype]
    if end - begin != nbytes:
        raise ModelError(
            f"{where}: shape {field.shape} needs {nbytes} bytes, its offsets give {end - begin}"
        )
    return TensorEntry(
        file=path,
        dtype=field.dtype,
        shape=tuple(field.shape),
        offset=data_start + begin,
        nbytes=nbytes,
    )


def _check_tiling(path: Path, tensors: dict[str, TensorEntry], data_start: int, size: int) -> None:
    """The tensors cover the data exactly: no overlap, no hole, nothing past the end."""
    position = data_start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != position:
            problem = (
                "overlaps the tensor before it" if entry.offset < position else "follows a hole"
            )
            raise ModelError(f"{path}: {name} {problem} in the data (offset {entry.offset})")
        position += entry.nbytes
    if position > size:
        raise ModelError(f"{path}: cut off: {size} bytes where its header needs {position}")
    if position < size:
        raise ModelError(f"{path}: {size - position} bytes too long for its header")
