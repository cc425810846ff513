"""The check of model directories: ties, damaged shards, pickles. Each refusal names file and cause."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.errors import ModelError
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from tests.model_fixtures import tiny_model, write_directory

SHARD_1 = "model-00001-of-00002.safetensors"
SHARD_2 = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewrite_index(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the JSON header in place, its length kept by padding."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


# The four ways (and two) in which the tie and the head may disagree: case M01.


@pytest.mark.parametrize(
    ("tie", "head", "words"),
    [
        (True, "absent", None),
        (True, "same", None),
        (True, "different", "lm_head.weight differs from model.embed_tokens.weight"),
        (False, "absent", "lm_head.weight is missing, and config.json does not say"),
        (False, "different", None),
        (None, "absent", "lm_head.weight is missing, and config.json does not say"),
    ],
)
def test_tie_and_head_agree_or_the_model_is_refused(
    tmp_path: Path, tie: bool | None, head: str, words: str | None
) -> None:
    model = tiny_model(tie=head != "different")
    if head == "same":
        model.tensors[HEAD] = model.tensors[EMBEDDING].clone()
    if tie is None:
        del model.config["tie_word_embeddings"]
    else:
        model.config["tie_word_embeddings"] = tie
    write_directory(tmp_path, model)
    if words is None:
        check_model(tmp_path)
    else:
        assert words in refusal(tmp_path)
        assert "tie_word_embeddings" in refusal(tmp_path)


# Damaged shards: case M08.


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = write_directory(tmp_path / "model", tiny_model(), shards=2)
    check_model(directory)
    return directory


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: truncate(path, path.stat().st_size - 1000), "cut off"),
        (lambda path: truncate(path, 4), "cut off"),
        (lambda path: truncate(path, 0), "empty"),
        (lambda path: path.write_bytes(LFS_POINTER), "Git LFS pointer"),
        (lambda path: path.write_bytes(b"<!DOCTYPE html><html>"), "web page"),
        (
            lambda path: path.write_bytes(
                (2**63 - 1).to_bytes(8, "little") + path.read_bytes()[8:]
            ),
            "says its header has 9223372036854775807 bytes",
        ),
        (
            lambda path: path.write_bytes(
                (2**64 - 1).to_bytes(8, "little") + path.read_bytes()[8:]
            ),
            "damaged",
        ),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "1 bytes too long"),
        (become_directory, "not a regular file"),
        (become_pipe, "not a regular file"),
    ],
)
def test_a_damaged_shard_is_refused_with_its_name(
    sharded: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(sharded / SHARD_2)
    tracemalloc.start()
    message = refusal(sharded)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert SHARD_2 in message
    assert words in message
    assert peak < 50 * 2**20


def test_an_index_that_names_a_tensor_of_no_shard_is_refused(sharded: Path) -> None:
    rewrite_index(sharded, lambda weights: weights.update({"model.layers.9.x.weight": SHARD_2}))
    message = refusal(sharded)
    assert "lacks 'model.layers.9.x.weight'" in message
    assert SHARD_2 in message


def test_a_tensor_in_both_shards_is_refused(sharded: Path) -> None:
    first, second = load_file(sharded / SHARD_1), load_file(sharded / SHARD_2)
    save_file(second | {EMBEDDING: first[EMBEDDING]}, sharded / SHARD_2)
    assert f"{EMBEDDING} is in {SHARD_1} as well" in refusal(sharded)


def test_only_the_files_the_index_names_are_read(sharded: Path) -> None:
    (sharded / "model.safetensors").write_bytes(b"something else")
    check_model(sharded)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "x.bin", 7]
)
def test_an_index_cannot_point_outside_the_directory(sharded: Path, name: Any) -> None:
    rewrite_index(sharded, lambda weights: weights.update({EMBEDDING: name}))
    assert "not a .safetensors file of this directory" in refusal(sharded)


def test_a_tensor_of_another_shape_than_the_config_says_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    model.config["intermediate_size"] = 96
    message = refusal(write_directory(tmp_path, model))
    assert "has shape [128, 64], config.json asks for [96, 64]" in message


def test_a_missing_and_an_unknown_tensor_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    moved = model.tensors.pop("model.layers.1.self_attn.q_proj.weight")
    assert "self_attn.q_proj.weight is in no weight file" in refusal(
        write_directory(tmp_path / "missing", model)
    )
    model = tiny_model()
    model.tensors["model.layers.1.self_attn.q_proj.bias"] = moved[0]
    assert "q_proj.bias is not a tensor of this model family" in refusal(
        write_directory(tmp_path / "unknown", model)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: entry.update(data_offsets=[0, 4]), "its offsets give 4"),
        (lambda entry: entry.update(dtype="I64"), "element type 'I64' is not supported"),
        (lambda entry: entry.update(shape=[-1, 64]), "damaged header entry"),
        (lambda entry: entry.update(shape=[2**40, 2**40]), "needs"),
        (lambda entry: entry.update(data_offsets=[1, 2, 3]), "damaged header entry"),
        (lambda entry: entry.pop("dtype"), "damaged header entry"),
    ],
)
def test_a_header_entry_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    write_directory(tmp_path, tiny_model())
    rewrite_header(tmp_path / "model.safetensors", lambda header: change(header[EMBEDDING]))
    assert words in refusal(tmp_path)


@pytest.mark.parametrize(("shift", "words"), [(-256, "overlaps"), (256, "follows a hole")])
def test_tensors_that_overlap_or_leave_a_hole_are_refused(
    tmp_path: Path, shift: int, words: str
) -> None:
    write_directory(tmp_path, tiny_model())

    def move(header: dict[str, Any]) -> None:
        offsets = header["model.norm.weight"]["data_offsets"]
        header["model.norm.weight"]["data_offsets"] = [part + shift for part in offsets]

    rewrite_header(tmp_path / "model.safetensors", move)
    assert words in refusal(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_refused_at_load(tmp_path: Path, value: float) -> None:
    model = tiny_model()
    model.tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = value
    write_directory(tmp_path, model)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN"):
        load_model(tmp_path, "cpu", None)


# Pickles and remote code: case M11.


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def test_no_pickle_is_ever_opened(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    bomb = pickle.dumps(_Bomb(marker))

    only = write_directory(tmp_path / "only", tiny_model())
    (only / "model.safetensors").unlink()
    (only / "pytorch_model.bin").write_bytes(bomb)
    assert re.search(r"pytorch_model\.bin: pickle .* convert to safetensors", refusal(only))

    beside = write_directory(tmp_path / "beside", tiny_model())
    (beside / "pytorch_model.bin").write_bytes(bomb)
    load_model(beside, "cpu", None)

    renamed = write_directory(tmp_path / "renamed", tiny_model())
    (renamed / "model.safetensors").write_bytes(bomb)
    assert "is a pickle; convert it to safetensors" in refusal(renamed)
    torch.save({"weight": _Bomb(marker)}, renamed / "model.safetensors")
    assert "is a zip or pickle checkpoint; convert it to safetensors" in refusal(renamed)

    remote = write_directory(
        tmp_path / "remote", tiny_model(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    )
    (remote / "modeling_evil.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    load_model(remote, "cpu", None)

    assert not marker.exists()


@pytest.mark.parametrize("name", ["tokenizer.pkl", "tokenizer.pt"])
def test_a_pickled_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path, tiny_model())
    (tmp_path / "tokenizer.json").rename(tmp_path / name)
    assert "tokenizer.json: no such file; other tokenizer formats are not read" in refusal(tmp_path)


def test_a_link_to_a_file_that_is_no_checkpoint_gives_nothing_of_it_away(tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:$6$secret:19000:0:99999:7:::\n")
    directory = write_directory(tmp_path / "model", tiny_model())
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to(secret)
    message = refusal(directory)
    assert "not a safetensors file" in message
    assert "secret" not in message


# Tokenizers and paths.


def test_a_tokenizer_with_ids_past_the_embedding_is_refused(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=200)
    assert "is past the model's vocab_size 200" in refusal(write_directory(tmp_path, model))


@pytest.mark.parametrize("content", ["[]", "{}", '{"model": null}', "not json"])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    write_directory(tmp_path, tiny_model())
    (tmp_path / "tokenizer.json").write_text(content)
    assert "tokenizer.json: not" in refusal(tmp_path)


def test_a_path_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    assert "nowhere: no such file" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "not a model directory or .gguf file" in refusal(tmp_path / "file")
    assert "config.json: no such file" in refusal(tmp_path)


def test_the_check_needs_no_torch() -> None:
    code = "import sys, appliance.model.files; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_file_says_appears_in_a_message_as_one_short_line(tmp_path: Path) -> None:
    long = refusal(write_directory(tmp_path / "long", tiny_model(model_type="x" * 10_000_000)))
    assert len(long) < 1000
    write_directory(tmp_path / "lines", tiny_model())
    rewrite_header(
        tmp_path / "lines" / "model.safetensors",
        lambda header: header.update({"two\nlines": header.pop(EMBEDDING)}),
    )
    assert "a tensor is named 'two\\nlines'" in refusal(tmp_path / "lines")
