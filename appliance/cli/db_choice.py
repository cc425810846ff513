"""Which appliance or database a command means that names none: the installed one, or this user's demo.

Never: guesses where both are there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.demo_paths import demo_paths
from appliance.cli.installed import CONFIG
from appliance.errors import ConfigError


def choose(options: argparse.Namespace) -> bool:
    """Whether no option says which one; `config` is filled in then where an appliance is installed.

    Raises ConfigError where this user has a demo as well.
    """
    if any(getattr(options, name, None) is not None for name in ("url", "data_dir", "config")):
        return False
    demo = demo_paths(None).data_dir
    if is_there(CONFIG):
        if is_there(demo):
            raise ConfigError(
                "which one is meant? An appliance is installed here, and this user has a demo: add "
                f"--config {CONFIG} or --data-dir {demo}"
            )
        options.config = CONFIG
    return True


def chosen(options: argparse.Namespace, is_default: bool) -> str:
    """The line that says which database is meant. Raises ConfigError."""
    from appliance.cli.db_options import cluster_folder, target_of

    whose = " of this user's demo" if is_default else ""
    if options.config == CONFIG:
        whose = " of the installed appliance"
    target = target_of(options) if "url" in options else cluster_folder(options)
    return f"database{whose}: {target}"


def is_there(path: Path) -> bool:
    """A folder that may not be looked into counts: what it is about is there."""
    try:
        return path.exists()
    except PermissionError:
        return True
