"""The cache of converted models: once per source, again when the source or the result changed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from appliance.errors import ModelError
from appliance.model.conversion import convert_once
from appliance.model.manifest import read_manifest
from tests.model_fixtures import tiny_model, write_gguf


def convert(source: Path, cache_dir: Path) -> tuple[Path, bool]:
    """(directory, whether anything had to be converted)."""
    fractions: list[float] = []
    directory = convert_once(source, cache_dir, fractions.append, lambda part: None)
    assert read_manifest(directory) is not None
    return directory, bool(fractions)


def test_a_source_is_converted_once(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    first, converted = convert(source, tmp_path / "cache")
    assert converted
    assert convert(source, tmp_path / "cache") == (first, False)


def test_a_source_that_changed_is_converted_into_another_directory(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    first, _ = convert(source, tmp_path / "cache")
    write_gguf(source, tiny_model(tie=False))
    second, converted = convert(source, tmp_path / "cache")
    assert converted
    assert second != first


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    first, _ = convert(source, tmp_path / "cache")
    (first / "tokenizer.json").write_text("{}")
    assert convert(source, tmp_path / "cache") == (first, True)


def test_a_second_caller_is_told_that_it_waits(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny_model())
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    waits: list[float] = []
    began = threading.Event()

    def waiting(part: float) -> None:
        waits.append(part)
        began.set()

    with (cache_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(
            target=convert_once, args=(source, cache_dir, lambda part: None, waiting)
        )
        second.start()
        assert began.wait(30)
    second.join(60)
    assert waits == [0.0, 1.0]


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: cannot be read: No such file"):
        convert(tmp_path / "m.gguf", tmp_path / "cache")
