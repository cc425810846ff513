"""One folder that runs wherever it lies: a Python, the libraries, the program and what it reads.

Owns what is in it and where. Never: fetches anything; all of it is the environment that runs this.

    bin/appliance          the command, by its own place
    bin/python3.11         the interpreter, with lib/python3.11 and lib/libpython3.11.so
    lib/…/site-packages    the libraries that `appliance` requires, without those of its tests
    share/appliance        this checkout: appliance/ prompts/ systemd/ docs/
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = Path("lib") / PYTHON / "site-packages"
SHARE = Path("share/appliance")
EXTRAS = ("demo", "traces")
"""All that are not for tests: a box has no network to install them from."""

_PARTS = ("appliance", "prompts", "systemd", "docs")
_NOT_OF_THE_LIBRARY = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    # Extensions for a desktop, a terminal or tests, whose libraries a server would have to have.
    "_tkinter*",
    "_curses*",
    "readline*",
    "nis*",
    "_dbm*",
    "_gdbm*",
    "_test*",
    "_ctypes_test*",
    "xx*",
)

LAUNCHER = f"""#!/bin/sh
here=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$here/bin/{PYTHON}" -P -m appliance.cli.main "$@"
"""


def make_tree(prefix: Path, *, version: str, with_libraries: bool = True) -> None:
    """Make the folder `prefix`, which must not exist.

    Without libraries it is for a test that brings them along in another way. Raises RuntimeError when
    this Python cannot be moved, OSError, or CalledProcessError.
    """
    (prefix / SITE).mkdir(parents=True)
    _copy_python(prefix)
    _copy_program(prefix / SHARE, version)
    # Relative to the folder that the file is in (site(3)).
    up = "/".join([".."] * len(SITE.parts))
    (prefix / SITE / "appliance.pth").write_text(f"{up}/{SHARE}\n", encoding="utf-8")
    launcher = prefix / "bin/appliance"
    launcher.write_text(LAUNCHER, encoding="utf-8")
    launcher.chmod(0o755)
    if with_libraries:
        for library in required("appliance", EXTRAS):
            _copy_library(library, prefix / SITE)
        # What a library brings along need not compile (templates, other versions' files).
        _compile(prefix, Path("lib") / PYTHON, check=False)
    _compile(prefix, SHARE, check=True)
    _check(prefix)


def required(name: str, extras: tuple[str, ...]) -> list[Distribution]:
    """Every distribution that `name` needs here, itself not."""
    found: dict[str, Distribution] = {}
    asked = [(name, extras)]
    while asked:
        of, wanted = asked.pop()
        for text in distribution(of).requires or ():
            need = Requirement(text)
            marker = need.marker
            if marker is not None and not any(marker.evaluate({"extra": e}) for e in ("", *wanted)):
                continue
            key = canonicalize_name(need.name)
            if key not in found:
                found[key] = distribution(need.name)
                asked.append((need.name, tuple(need.extras)))
    return [found[key] for key in sorted(found)]


def _copy_python(prefix: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    ignored = shutil.ignore_patterns(*_NOT_OF_THE_LIBRARY)
    shutil.copytree(library, prefix / "lib" / PYTHON, ignore=ignored, dirs_exist_ok=True)
    program = prefix / "bin" / PYTHON
    program.parent.mkdir()
    base = Path(sys.base_prefix) / "bin" / PYTHON
    content = base.read_bytes()
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folder = str(sysconfig.get_config_var("LIBDIR"))
        name = str(sysconfig.get_config_var("INSTSONAME"))
        shutil.copy2(Path(folder) / name, prefix / "lib" / name)
        content = _relocated(content, folder)
    program.write_bytes(content)
    program.chmod(0o755)
    (prefix / "bin/python").symlink_to(PYTHON)


def _relocated(program: bytes, folder: str) -> bytes:
    """The program with the folder of its shared library (DT_RUNPATH, ld.so(8)) beside its own.

    The new text is written over the old, which is longer.
    """
    old, new = folder.encode() + b"\0", b"$ORIGIN/../lib"
    if new + b"\0" in program:
        return program
    if program.count(old) != 1 or len(new) >= len(old):
        raise RuntimeError(
            f"this Python finds its library in {folder} in a way that cannot be moved"
        )
    return program.replace(old, new.ljust(len(old), b"\0"))


def _copy_program(share: Path, version: str) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in _PARTS:
        shutil.copytree(ROOT / name, share / name, ignore=ignored)
    for extension in (share / "appliance").glob("_core*.so"):
        subprocess.run(["strip", "--strip-debug", extension], check=True)
    about = share / f"appliance-{version}.dist-info"
    about.mkdir()
    text = f"Metadata-Version: 2.1\nName: appliance\nVersion: {version}\n"
    (about / "METADATA").write_text(text, encoding="utf-8")
    for path in [share, *share.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _copy_library(library: Distribution, site: Path) -> None:
    for file in library.files or ():
        source = Path(str(library.locate_file(file)))
        if ".." in file.parts or not source.is_file():
            continue  # Commands beside the environment's Python.
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if source.stat().st_mode & 0o444 != 0o444:
                raise PermissionError
            os.link(source, target)
        except OSError:  # Another disk, or not for everybody to read.
            shutil.copy2(source, target)
            target.chmod(target.stat().st_mode | 0o444)


def _compile(prefix: Path, folder: Path, *, check: bool) -> None:
    """Services may not write beside the code, so what is not compiled now is compiled at each start."""
    words = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    program = prefix / "bin" / PYTHON
    # Messages about a file name it as it will be found.
    names = ["-s", str(prefix), "-p", "/"]
    subprocess.run(
        [str(program), "-P", *words, *names, str(prefix / folder)],
        check=check,
        stdout=None if check else subprocess.DEVNULL,
    )


def _check(prefix: Path) -> None:
    """Run it: its library, prefix and program must be its own."""
    script = "import sys; print(sys.prefix); print(open('/proc/self/maps').read())"
    words = [str(prefix / "bin" / PYTHON), "-P", "-c", script]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env={}).stdout
    own, _, maps = said.partition("\n")
    if own != str(prefix) or f"{sys.base_prefix}/lib/libpython" in maps:
        raise RuntimeError(f"the Python in {prefix} still uses what lies in {sys.base_prefix}")
