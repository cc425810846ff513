"""`python -m deb.build`: a .deb that holds one version in /opt/appliance/VERSION.

The package is named after its version, so that several are installed beside each other and an upgrade can
go back. What it needs of the system are its dependencies, found by asking the loader. Installing it
starts nothing: `appliance system install` or `upgrade` does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from deb.tree import ROOT, make_tree

HOME = Path("opt/appliance")
MANAGER = "systemd (>= 247)"

PRERM = """#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
for link in current previous; do
  if [ "$(readlink {home}/$link)" = {home}/{version} ]; then
    echo "appliance {version} is the $link version: upgrade from it, or appliance system uninstall" >&2
    exit 1
  fi
done
# An upgrade leaves an engine that is the same in both versions running, from this one's files.
for program in /proc/[0-9]*/exe; do
  case "$(readlink "$program")" in
  {home}/{version}/*)
    pid=${{program#/proc/}}
    pid=${{pid%/exe}}
    echo "process $pid is still of appliance {version}: systemctl status $pid, then restart its unit" >&2
    exit 1
    ;;
  esac
done
# What Python left beside its files.
find {home}/{version} -name __pycache__ -prune -exec rm -rf {{}} + 2>/dev/null || true
"""

CONTROL = """Package: appliance-{version}
Version: {version}
Architecture: {architecture}
Maintainer: the builder of this package <root@localhost>
Installed-Size: {kib}
Depends: {depends}
Section: net
Priority: optional
Description: a single-box chat appliance, version {version}
 Everything it runs lies in /opt/appliance/{version}; nothing is started.
 First: /opt/appliance/{version}/bin/appliance system install --model DIR
 Later: /opt/appliance/{version}/bin/appliance system upgrade
"""


def main() -> int:
    """Build what the options say; prints the file's path."""
    parser = argparse.ArgumentParser(prog="python -m deb.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the package")
    parser.add_argument("--version", default=version_of_checkout())
    parser.add_argument(
        "--compression", choices=("zstd", "gzip", "xz", "none"), default="zstd", help="of its files"
    )
    options = parser.parse_args()
    print(build(options.out, version=options.version, compression=options.compression))
    return 0


def version_of_checkout() -> str:
    """The version in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


def build(
    out: Path, *, version: str, compression: str = "zstd", with_libraries: bool = True
) -> Path:
    """The package's file in the folder `out`. Raises what `make_tree` raises, and RuntimeError."""
    out.mkdir(parents=True, exist_ok=True)
    # Below `out`: on the disk of the environment files are linked, not copied.
    with tempfile.TemporaryDirectory(dir=out, prefix=".stage-") as folder:
        stage = Path(folder)
        stage.chmod(0o755)
        prefix = stage / HOME / version
        prefix.parent.mkdir(parents=True)
        make_tree(prefix, version=version, with_libraries=with_libraries)
        return pack(stage, out, version=version, compression=compression)


def pack(stage: Path, out: Path, *, version: str, compression: str) -> Path:
    """The package of what lies in `stage`."""
    prefix = stage / HOME / version
    architecture = _say("dpkg", "--print-architecture").strip()
    files = [path for path in sorted(prefix.rglob("*")) if path.is_file() and not path.is_symlink()]
    control = CONTROL.format(
        version=version,
        architecture=architecture,
        kib=sum(path.stat().st_size for path in files) // 1024,
        depends=", ".join([MANAGER, *dependencies(prefix, files)]),
    )
    about = stage / "DEBIAN"
    about.mkdir()
    (about / "control").write_text(control, encoding="utf-8")
    (about / "md5sums").write_text("".join(_sums(stage, files)), encoding="utf-8")
    prerm = PRERM.format(home=Path("/") / HOME, version=version)
    (about / "prerm").write_text(prerm, encoding="utf-8")
    (about / "prerm").chmod(0o755)
    target = out / f"appliance-{version}_{architecture}.deb"
    level = () if compression == "none" else ("-z3",)
    words = ("dpkg-deb", "--root-owner-group", f"-Z{compression}", *level, "--build")
    _say(*words, str(stage), str(target))
    return target


def dependencies(prefix: Path, files: list[Path]) -> list[str]:
    """The system's packages whose libraries are loaded by what is in `prefix`."""
    outside: set[str] = set()
    for path in files:
        if ".so" in path.name or (os.access(path, os.X_OK) and path.read_bytes()[:4] == b"\x7fELF"):
            # Not found (a GPU's driver, another part of the same library): nobody's package.
            said = subprocess.run(("ldd", path), capture_output=True, text=True, check=False).stdout
            outside |= set(re.findall(r"=> (/\S+)", said))
    real = {os.path.realpath(path) for path in outside}
    real = {path for path in real if not path.startswith(f"{prefix}/")}
    owners: dict[str, str] = {}
    # Packages from before /lib was a link to /usr/lib still name it without.
    asked = sorted(real | {path.removeprefix("/usr") for path in real})
    said = subprocess.run(
        ("dpkg-query", "--search", *asked), capture_output=True, text=True, check=False
    ).stdout
    for line in said.splitlines():
        package, _, library = line.rpartition(": ")
        owners[os.path.realpath(library)] = package.partition(":")[0]
    strange = sorted(real - owners.keys())
    if strange:
        raise RuntimeError(f"no package has {', '.join(strange)}, which the program loads")
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    names = set(owners.values()) - {"libc6"}
    return [f"libc6 (>= {glibc.rpartition(' ')[2]})", *sorted(names)]


def _sums(stage: Path, files: list[Path]) -> Iterator[str]:
    for path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        yield f"{digest.hexdigest()}  {path.relative_to(stage)}\n"


def _say(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
