"""Converted models kept in a cache folder: each source once, by one process at a time. Never: loading."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import ModelError
from appliance.model.gguf_convert import convert_gguf
from appliance.model.manifest import read_manifest

LOCK_FILE = ".lock"


def convert_once(
    source: Path,
    cache_dir: Path,
    progress: Callable[[float], None],
    waiting: Callable[[float], None],
) -> Path:
    """The converted directory of a GGUF file; converts it when the cache lacks it or it is damaged.

    A source is known by its path, size and time of change. `waiting` gets 0.0 when another process
    holds the folder, and 1.0 when that is over. Raises ModelError.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise ModelError(f"{source}: cannot be read: {error.strerror}") from error
    identity = f"{source.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    key = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
    target = cache_dir / f"{source.stem}-{key}"
    if read_manifest(target) is None:
        with exclusive(cache_dir, waiting):
            if read_manifest(target) is None:
                convert_gguf(source, target, progress)
    return target


@contextmanager
def exclusive(cache_dir: Path, waiting: Callable[[float], None]) -> Iterator[None]:
    """Hold a cache folder for writing; makes it, and clears what a killed process left in it.

    The lock goes with the process, however that ends. Raises ModelError when the folder cannot be
    written to.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ModelError(f"{cache_dir}: cannot be written to: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(0.0)
            fcntl.flock(lock, fcntl.LOCK_EX)
            waiting(1.0)
        for leftover in (*cache_dir.glob("*.partial-*"), *cache_dir.glob("*.old-*")):
            shutil.rmtree(leftover)
        yield
    finally:
        os.close(lock)
