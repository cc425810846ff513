"""`appliance model`: what it prints, and which path or option its errors name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from tests.model_fixtures import tiny_model, write_gguf, write_tiny_llama

WORDS = "hello world 1999\n" * 30


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS)
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    assert main(["model", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["model", *map(str, arguments)]) == 2
    out, error = capsys.readouterr()
    assert error.startswith("appliance: ")
    assert error.count("\n") == 1
    assert "Traceback" not in out + error
    return error


def test_inspect_tells_shape_sizes_and_chats_by_tier(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "inspect", directory)
    assert found["shape"]["family"] == "llama"
    assert found["shape"]["kv_heads"] == 2
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["loaded_bytes"] == found["parameters"] * 12 // 8
    assert {"memory", "disk"} <= set(found["tiers"])
    kinds = {form["kv_dtype"]: form["token_bytes"] for form in found["own"]}
    assert kinds == {"float32": 512, "float16": 256, "bfloat16": 256, "int8": 160}
    for form in [*found["own"], *found["heads"]]:
        assert form["chats"] == {
            tier: free // form["chat_bytes"] for tier, free in found["tiers"].items()
        }


def test_inspect_prints_the_same_for_people(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["model", "inspect", str(directory)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 layers, 64 wide, 4 query and 2 K/V heads of 16" in printed
    assert "180 messages, kept as 256 tokens" in printed
    assert "int8 2 160 41.0 kB" in printed
    assert "multi-query 1 256 65.5 kB" in printed


def test_eval_tells_agreement_of_a_directory_and_of_a_gguf_file(
    directory: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = told(capsys, "eval", directory, "--text", text, "--tokens", "70")
    assert (found["weight_dtype"], found["kv_dtype"]) == ("int12", "float16")
    assert found["tokens"] == 70
    assert 0 < found["top1"] <= 1
    assert 0 < found["logit_difference"] < 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write_gguf(tmp_path / "model.gguf", tiny_model())
    assert told(capsys, "eval", source, "--text", text, "--tokens", "70") == found
    float32 = ("--weights", "float32", "--kv", "float32")
    assert main(["model", "eval", str(directory), "--text", str(text), *float32]) == 0
    printed = capsys.readouterr().out
    assert "Weights in float32, K/V in float32, beside float32" in printed
    assert "the likeliest token is the same   100.00%" in printed
    nearer, farther = (
        told(capsys, "eval", directory, "--text", text, "--kv=float32", f"--weights={form}")
        for form in ("int12", "int8")
    )
    assert nearer["weight_dtype"] == "int12"
    assert 0 < nearer["logit_difference"] < farther["logit_difference"] / 4


def test_errors_name_the_path_and_the_field(
    directory: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    assert f"{gone}: no such file" in refusal(capsys, "inspect", gone)
    assert f"{text}: not a model directory or .gguf file" in refusal(capsys, "inspect", text)
    assert f"{gone}: cannot be read" in refusal(capsys, "eval", directory, "--text", gone)
    text.write_bytes(b"hello \xff")
    assert f"{text}: not UTF-8 at byte 6" in refusal(capsys, "eval", directory, "--text", text)
    text.write_bytes(b"h")
    assert f"{text}: holds fewer than 2" in refusal(capsys, "eval", directory, "--text", text)
    with text.open("wb") as file:
        file.truncate(8 * 2**20 + 1)
    assert f"{text}: larger than 8 MiB" in refusal(capsys, "eval", directory, "--text", text)
    assert "/dev/zero: no regular file" in refusal(
        capsys, "eval", directory, "--text", Path("/dev/zero")
    )
    config = directory / "config.json"
    config.write_text(
        config.read_text().replace('"num_key_value_heads": 2', '"num_key_value_heads": 3')
    )
    error = refusal(capsys, "inspect", directory)
    assert f"{config}: num_attention_heads 4 is not a multiple of num_key_value_heads 3" in error


@pytest.mark.parametrize("tokens", ["1", "-5", "many", "1.5"])
def test_a_bad_number_of_tokens_is_refused_by_its_option(
    directory: Path, text: Path, tokens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["model", "eval", str(directory), "--text", str(text), f"--tokens={tokens}"])
    assert caught.value.code == 2
    assert "argument --tokens" in capsys.readouterr().err
