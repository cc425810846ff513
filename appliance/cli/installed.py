"""Where an installed appliance has its settings and secrets. Never: looks whether one is there."""

from __future__ import annotations

from pathlib import Path

CONFIG = Path("/etc/appliance/appliance.toml")
CREDENTIALS = Path("/etc/appliance/credentials")
