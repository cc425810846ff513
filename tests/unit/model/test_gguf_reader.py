"""Damaged and crafted GGUF files: each is refused quickly, with one line, for the true cause."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from appliance.errors import ModelError
from appliance.model.files import check_model
from appliance.model.gguf_reader import TYPES
from tests.model_fixtures import tiny_model, write_gguf

REFUSAL_S_MAX = 2.0
MEMORY_BYTES_MAX = 64 * 2**20


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "good.gguf", tiny_model())
    check_model(path)
    return path.read_bytes()


def refusal(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        check_model(path)
    elapsed, peak = time.monotonic() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < REFUSAL_S_MAX
    assert peak < MEMORY_BYTES_MAX
    assert caught.value.message.startswith(str(path))
    assert "\n" not in caught.value.message
    return caught.value.message


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*, version: int = 3, tensors: int = 0, fields: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def tensor_info(
    name: str = "token_embd.weight", dims: tuple[int, ...] = (32, 4), kind: int = 0, offset: int = 0
) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ALIGNMENT = text("general.alignment") + struct.pack("<I", 4)


@pytest.mark.parametrize("part", [0, 4, 8, 24, 0.1, 0.5, 0.9, -1])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, good: bytes, part: float) -> None:
    length = int(part * len(good)) if isinstance(part, float) else part % len(good)
    refusal(tmp_path, good[:length])


def test_a_file_cut_off_in_the_data_is_told_so(tmp_path: Path, good: bytes) -> None:
    assert "cut off" in refusal(tmp_path, good[:-1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGML" + bytes(100), "old GGML format"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (bytes(100), "not a GGUF file"),
        (header(version=1), "version 1 is not supported"),
        (header(version=99), "version 99 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (header(tensors=2**60), "1152921504606846976 tensors"),
        (header(fields=2**60), "1152921504606846976 metadata fields"),
        (header(fields=1) + struct.pack("<Q", 2**62), "a string of 4611686018427387904 bytes"),
        (
            header(fields=1) + text("a") + struct.pack("<IQ", 8, 2**62),
            "a string of 4611686018427387904 bytes",
        ),
        (header(fields=1) + text("a") + struct.pack("<IIQ", 9, 8, 2**62), "strings"),
        (header(fields=1) + text("a") + struct.pack("<IIQ", 9, 4, 2**62), "are left"),
        (
            header(fields=1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000,
            "array of arrays",
        ),
        (header(fields=1) + text("a") + struct.pack("<I", 99), "value type 99 does not exist"),
        (header(fields=2) + (text("a") + struct.pack("<IB", 0, 1)) * 2, "'a' stands twice"),
        (header(fields=1) + struct.pack("<Q", 1) + b"\xff", "not UTF-8"),
        (header(tensors=1) + tensor_info(dims=(2**40,)), "cannot be in this file"),
        (header(tensors=1) + tensor_info(dims=(2**32, 2**32, 2**32)), "cannot be in this file"),
        (header(tensors=1) + tensor_info(dims=(0, 4)), "cannot be in this file"),
        (header(tensors=1) + tensor_info(dims=()), "has 0 dimensions"),
        (header(tensors=1) + tensor_info(dims=(1,) * 5), "has 5 dimensions"),
        (header(tensors=1) + tensor_info(offset=2**40) + bytes(2048), "cut off"),
        (header(tensors=1) + tensor_info(offset=2**64 - 32) + bytes(2048), "cut off"),
        (header(tensors=1) + tensor_info(offset=7) + bytes(2048), "not aligned"),
        (header(tensors=1) + tensor_info(kind=200) + bytes(2048), "ggml type 200"),
        (header(tensors=1) + tensor_info(dims=(33, 4), kind=8) + bytes(2048), "no whole Q8_0"),
        (header(tensors=2) + tensor_info() * 2 + bytes(2048), "stands twice"),
        (
            header(tensors=2) + tensor_info() + tensor_info("b", offset=64) + bytes(2048),
            "overlaps another",
        ),
        (header(fields=1) + ALIGNMENT + struct.pack("<I", 0), "general.alignment 0"),
        (header(fields=1) + ALIGNMENT + struct.pack("<I", 3), "general.alignment 3"),
        (header(), "architecture None is not supported"),
    ],
)
def test_a_crafted_file_is_refused_for_its_cause(
    tmp_path: Path, content: bytes, words: str
) -> None:
    assert words in refusal(tmp_path, content)


def test_many_tiny_strings_do_not_fill_the_memory(tmp_path: Path) -> None:
    count = 3_000_000
    content = header(fields=1) + text("a") + struct.pack("<IIQ", 9, 8, count) + bytes(8 * count)
    assert f"an array of {count} strings" in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda path: write_gguf(path, tiny_model(), architecture="mamba"),
            "architecture 'mamba' is not supported",
        ),
        (
            lambda path: write_gguf(path, tiny_model(), fields={"split.no": 1, "split.count": 3}),
            "is part 2 of 3 of a split GGUF",
        ),
        (
            lambda path: write_gguf(
                path, tiny_model(), fields={"llama.rope.scaling.type": "longrope"}
            ),
            "rope scaling 'longrope' is not supported",
        ),
        (
            lambda path: write_gguf(path, tiny_model(), fields={"llama.expert_count": 8}),
            "mixtures of experts are not supported",
        ),
        (
            lambda path: write_gguf(path, tiny_model(), fields={"llama.rope.dimension_count": 8}),
            "rotates 8 of 16 dimensions",
        ),
    ],
)
def test_what_is_merely_unsupported_is_not_called_damaged(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    message = refusal(tmp_path, make(tmp_path / "made.gguf").read_bytes())
    assert words in message
    assert "damaged" not in message


def test_flipped_bytes_never_escape_as_another_error(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "flipped.gguf"
    header_bytes = len(good) - sum(4 * tensor.numel() for tensor in tiny_model().tensors.values())
    for position in range(0, header_bytes, 61):
        for value in (0x00, 0x80, 0xFF):
            path.write_bytes(good[:position] + bytes([value]) + good[position + 1 :])
            try:
                check_model(path)
            except ModelError:
                continue


def test_the_table_of_element_types_is_that_of_the_gguf_package() -> None:
    for number, kind in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (theirs.name, gguf.GGML_QUANT_SIZES[theirs]) == (
            kind.name,
            (kind.block, kind.block_bytes),
        )
