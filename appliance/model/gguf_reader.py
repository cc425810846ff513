"""The GGUF container: metadata and where each tensor lies. Never: what the names mean, dequantising.

Every length is checked against the bytes that are left before anything is read or allocated, because
these files come from strangers. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError

VERSIONS = (2, 3)
FIELDS_MAX = 65_536
TENSORS_MAX = 65_536
STRINGS_MAX = 2_000_000
"""In all arrays of a file together; a vocabulary of 262,144 tokens and its merges need 800,000."""

NAME_BYTES_MAX = 65_535
DIMENSIONS_MAX = 4
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAX = 65_536

GgufValue: TypeAlias = int | float | bool | str | list[str] | NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgmlType:
    """An element type: `block` elements take `block_bytes` bytes. `number` is ggml's own."""

    number: int
    name: str
    block: int
    block_bytes: int


TYPES = {
    kind.number: kind
    for kind in (
        GgmlType(number=number, name=name, block=block, block_bytes=block_bytes)
        for number, name, block, block_bytes in (
            (0, "F32", 1, 4),
            (1, "F16", 1, 2),
            (2, "Q4_0", 32, 18),
            (3, "Q4_1", 32, 20),
            (6, "Q5_0", 32, 22),
            (7, "Q5_1", 32, 24),
            (8, "Q8_0", 32, 34),
            (10, "Q2_K", 256, 84),
            (11, "Q3_K", 256, 110),
            (12, "Q4_K", 256, 144),
            (13, "Q5_K", 256, 176),
            (14, "Q6_K", 256, 210),
            (30, "BF16", 1, 2),
        )
    )
}
"""The element types that are accepted (ggml.h, `ggml_type`)."""

_SCALARS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor. `shape` is row-major (the file stores it reversed); `offset` is in the file."""

    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """A whole header. All tensors lie inside the file and do not overlap."""

    path: Path
    metadata: dict[str, GgufValue]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> Gguf:
    """Read the header of a file; raises ModelError with the file, the offset and the cause."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"{path}: the file is empty; download it again")
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            return _Header(path, mapped).read()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


class _Header:
    """A cursor over the mapped file; `_position` never passes the end."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self._size = len(mapped)
        self._position = 0
        self._strings = 0

    def read(self) -> Gguf:
        self._read_magic()
        tensor_count = self._count("tensors", TENSORS_MAX)
        field_count = self._count("metadata fields", FIELDS_MAX)
        metadata: dict[str, GgufValue] = {}
        for _ in range(field_count):
            key = self._string(NAME_BYTES_MAX)
            if key in metadata:
                raise self._damaged(f"metadata field {key!r} stands twice")
            metadata[key] = self._value(self._u32())
        infos: dict[str, tuple[GgmlType, tuple[int, ...], int]] = {}
        for _ in range(tensor_count):
            name = self._string(NAME_BYTES_MAX)
            if name in infos:
                raise self._damaged(f"tensor {name!r} stands twice")
            infos[name] = self._tensor_info(name)
        return Gguf(path=self._path, metadata=metadata, tensors=self._place(infos, metadata))

    def _read_magic(self) -> None:
        magic = self._mapped[:4]
        if self._mapped[:23] == b"version https://git-lfs":
            raise ModelError(
                f"{self._path}: is a Git LFS pointer, not the file: run `git lfs pull`"
            )
        if magic in (b"GGML", b"lmgg", b"tjgg", b"fmgg"):
            raise ModelError(f"{self._path}: is of the old GGML format; convert it to GGUF")
        if magic != b"GGUF":
            raise ModelError(f"{self._path}: not a GGUF file (no magic at offset 0)")
        self._position = 4
        version = self._u32()
        if version & 0xFFFF == 0 and version:
            raise ModelError(f"{self._path}: big-endian GGUF files are not supported")
        if version not in VERSIONS:
            raise ModelError(
                f"{self._path}: GGUF version {version} is not supported; supported: 2 and 3"
            )

    def _place(
        self,
        infos: dict[str, tuple[GgmlType, tuple[int, ...], int]],
        metadata: dict[str, GgufValue],
    ) -> dict[str, GgufTensor]:
        """Turn offsets into places in the file, and prove that they are inside and apart."""
        alignment = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if (
            type(alignment) is not int
            or not 0 < alignment <= ALIGNMENT_MAX
            or alignment & (alignment - 1)
        ):
            raise self._damaged(f"general.alignment {alignment!r} is not a power of two")
        data_start = -(-self._position // alignment) * alignment
        end_before = data_start
        tensors: dict[str, GgufTensor] = {}
        for name, (kind, shape, relative) in sorted(infos.items(), key=lambda item: item[1][2]):
            offset = data_start + relative
            nbytes = math.prod(shape) // kind.block * kind.block_bytes
            if relative % alignment:
                raise self._damaged(f"tensor {name!r} at offset {offset} is not aligned")
            if offset < end_before:
                raise self._damaged(f"tensor {name!r} at offset {offset} overlaps another")
            if offset + nbytes > self._size:
                raise self._damaged(
                    f"tensor {name!r} ends at {offset + nbytes}, the file at {self._size}; "
                    "it is cut off or its header is wrong"
                )
            end_before = offset + nbytes
            tensors[name] = GgufTensor(type=kind, shape=shape, offset=offset, nbytes=nbytes)
        return tensors

    def _tensor_info(self, name: str) -> tuple[GgmlType, tuple[int, ...], int]:
        dimensions = self._u32()
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions")
        dims = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))
        number = self._u32()
        offset: int = struct.unpack("<Q", self._take(8))[0]
        kind = TYPES.get(number)
        if kind is None:
            names = ", ".join(known.name for known in TYPES.values())
            raise ModelError(
                f"{self._path}: tensor {name!r} has ggml type {number}, which is not supported; "
                f"supported: {names}"
            )
        # Every element takes at least two bits of file.
        if 0 in dims or math.prod(dims) > 4 * self._size:
            raise self._damaged(f"tensor {name!r} of shape {dims} cannot be in this file")
        if dims[0] % kind.block:
            raise self._damaged(f"rows of tensor {name!r} are no whole {kind.name} blocks")
        return kind, tuple(reversed(dims)), offset

    def _value(self, kind: int) -> GgufValue:
        if kind == _STRING:
            return self._string(self._size)
        if kind == _ARRAY:
            return self._array(self._u32())
        scalar: int | float | bool = self._scalars(kind, 1)[0].item()
        return scalar

    def _array(self, kind: int) -> GgufValue:
        length = self._u64()
        if kind == _ARRAY:
            raise self._damaged("an array of arrays, which no supported model has")
        if kind == _STRING:
            self._strings += length
            if self._strings > STRINGS_MAX or length > self._size // 8:
                raise self._damaged(f"an array of {length} strings")
            return [self._string(self._size) for _ in range(length)]
        return self._scalars(kind, length).copy()

    def _scalars(self, kind: int, length: int) -> NDArray[np.generic]:
        if kind not in _SCALARS:
            raise self._damaged(f"metadata value type {kind} does not exist")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(dtype.itemsize * length), dtype=dtype)

    def _count(self, what: str, limit: int) -> int:
        count = self._u64()
        if count > limit:
            raise self._damaged(f"says it has {count} {what}; the limit is {limit}")
        return count

    def _string(self, bytes_max: int) -> str:
        length = self._u64()
        if length > bytes_max:
            raise self._damaged(f"a string of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise self._damaged("a string is not UTF-8") from error

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > self._size:
            raise self._damaged(f"{length} bytes wanted, {self._size - self._position} are left")
        taken = self._mapped[self._position : end]
        self._position = end
        return taken

    def _damaged(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: damaged GGUF near offset {self._position}: {problem}")
