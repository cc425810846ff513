"""Where a demo keeps what it has. Never: makes a folder."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config import Paths


def demo_paths(data_dir: Path | None) -> Paths:
    """The folders of the demo in `data_dir`, or in this user's data folder."""
    folder = (data_dir or _default_data_dir()).absolute()
    return Paths(data_dir=folder, run_dir=folder / "run")


def _default_data_dir() -> Path:
    """Where this user's data lives (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return root / "appliance"
