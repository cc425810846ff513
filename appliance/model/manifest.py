"""What a finished conversion consists of (`appliance.json`), and a model's fingerprint. Never: tensors.

The manifest is written last, so a directory that has one is whole; digests of the
small files, and sizes and times of the large ones, are checked again before it is trusted.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from appliance.errors import ModelError
from appliance.model.safetensors_reader import checkpoint_files

MANIFEST_FILE = "appliance.json"
MANIFEST_FORMAT = 1
"""Goes up when the conversion changes; older directories are then converted anew."""

DIGEST_BYTES_MAX = 64 * 2**20
"""Files up to this size are digested again by `read_manifest`; of larger ones only the time."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Size in bytes, time of the last change (ns of unix time) and SHA-256 (hex) of one file."""

    size: int
    changed_ns: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`source_sha256`: of the GGUF file; `fingerprint`: as `fingerprint()` computes it."""

    format: int
    source_sha256: str
    fingerprint: str
    files: dict[str, FileRecord]


def write_manifest(directory: Path, source_sha256: str) -> None:
    """Record the directory as it is now."""
    files = {
        path.name: FileRecord(
            size=path.stat().st_size, changed_ns=path.stat().st_mtime_ns, sha256=file_sha256(path)
        )
        for path in sorted(directory.iterdir())
    }
    manifest = Manifest(
        format=MANIFEST_FORMAT,
        source_sha256=source_sha256,
        fingerprint=_combine({path.name: files[path.name].sha256 for path in _parts(directory)}),
        files=files,
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (directory / MANIFEST_FILE).write_bytes(content)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest, or None when there is none, it is of another format or a file changed since."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST_FILE).read_bytes(), type=Manifest)
        intact = manifest.format == MANIFEST_FORMAT and all(
            _is_intact(directory / name, record) for name, record in manifest.files.items()
        )
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return manifest if intact else None


def fingerprint(directory: Path) -> str:
    """SHA-256 (hex) over config and weights; from the manifest where there is a valid one.

    Without a manifest it reads every weight file (about 0.7 s per 500 MB).
    """
    manifest = read_manifest(directory)
    if manifest is not None:
        return manifest.fingerprint
    return _combine({path.name: file_sha256(path) for path in _parts(directory)})


def form_fingerprint(digest: str, form: str) -> str:
    """SHA-256 (hex) that names a model as it computes: its files and the form it has in memory.

    `digest`: from `fingerprint`; `form`: element types of weights and of keys and values, and the
    adapter. Forms differ in what they cache, so each has a namespace of its own.
    """
    return hashlib.sha256(f"{digest}\n{form}\n".encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hex; raises ModelError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def _parts(directory: Path) -> list[Path]:
    return [directory / "config.json", *checkpoint_files(directory)]


def _combine(digests: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def _is_intact(path: Path, record: FileRecord) -> bool:
    """A large file that was copied or written again is not trusted: its digest would take a second."""
    found = path.stat()
    if found.st_size != record.size:
        return False
    if record.size > DIGEST_BYTES_MAX:
        return found.st_mtime_ns == record.changed_ns
    return file_sha256(path) == record.sha256
