"""The peers' own code: fetched from the package index, checked, unpacked into a cache folder.

Owns that folder and the import path to it. Nothing of a peer is installed into `.venv` or kept in
the repository. Of the large wheels only the Python files that a comparison imports are unpacked.

    python -m bench.peers [--cache FOLDER]

`$APPLIANCE_PEERS`, else `$XDG_CACHE_HOME/appliance/peers`, is where the folder is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PINS = Path(__file__).with_name("peers.txt")

# What is needed of a wheel whose whole is hundreds of megabytes.
_PARTS: dict[str, tuple[str, ...]] = {
    "sglang": ("sglang/srt/mem_cache/",),
    "vllm": ("vllm/v1/core/", "vllm/v1/request.py", "vllm/v1/utils.py", "vllm/utils/hashing.py"),
}


def folder() -> Path:
    """Where the unpacked peers lie: a folder for each content of `peers.txt`."""
    chosen = os.environ.get("APPLIANCE_PEERS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(chosen) if chosen else cache / "appliance" / "peers"
    return base / hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]


def on_path() -> Path:
    """Fetch the peers unless they are there, and make them importable after everything of ours."""
    site = folder()
    if not site.is_dir():
        _fetch(site)
    if str(site) not in sys.path:
        sys.path.append(str(site))
    return site


def versions() -> dict[str, str]:
    """Name and version of each peer, as pinned."""
    pins = [line.split()[0] for line in PINS.read_text().splitlines() if "==" in line]
    return {pin.split("==")[0]: pin.split("==")[1] for pin in pins}


def _fetch(site: Path) -> None:
    site.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the rename at the end is one step and a fetch cut off leaves nothing.
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
        wheels, unpacked = Path(scratch, "wheels"), Path(scratch, "site")
        print(f"fetching {', '.join(versions())} into {site}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pins = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(PINS)]
        subprocess.run([*pip, *pins, "--dest", str(wheels)], check=True)
        unpacked.mkdir()
        for wheel in sorted(wheels.iterdir()):
            _unpack(wheel, unpacked, _wanted(wheel))
        if site.exists():
            shutil.rmtree(site)
        unpacked.rename(site)


def _wanted(wheel: Path) -> Callable[[str], bool]:
    parts = _PARTS.get(wheel.name.split("-")[0])
    if parts is None:
        return lambda name: True
    return lambda name: name.startswith(parts) and name.endswith(".py")


def _unpack(wheel: Path, site: Path, wanted: Callable[[str], bool]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if wanted(name)])


def main() -> None:
    """Fetch the peers and say where they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="the folder instead of the default one")
    cache = parser.parse_args().cache
    if cache is not None:
        os.environ["APPLIANCE_PEERS"] = str(cache)
    print(on_path())


if __name__ == "__main__":
    main()
