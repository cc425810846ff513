"""A wall clock that can be set, for the processes of one product alone. Never: this machine's.

A preloaded library (`clock_shim.c`) adds a shift to what they read; monotonic clocks go on, as they do
when an operator or NTP sets a machine's clock.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shim.c")


def why_not() -> str | None:
    """What this machine lacks; None when the clock can be made."""
    return None if shutil.which("cc") else "no C compiler"


class WallClock:
    """Starts at this machine's time. `environment` is for the processes that shall read it."""

    def __init__(self, folder: Path) -> None:
        """Compiles the library into `folder`, which every process can reach."""
        library, shift = folder / "clock.so", folder / "clock"
        compiler = ("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE))
        subprocess.run(compiler, check=True)
        shift.write_bytes(bytes(8))
        library.chmod(0o755)
        shift.chmod(0o644)
        with shift.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.shift_s = 0
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "CHAOS_CLOCK": str(shift),
        }

    def jump(self, seconds: int) -> None:
        """Set it forward or back."""
        self.shift_s += seconds
        self._shared[:] = (self.shift_s * 10**9).to_bytes(8, "little", signed=True)
