"""`appliance task-ended NAME`: a timer's unit says how its task ended (`ExecStopPost=`), for `/metrics`.

Also of one that was killed, or took too long: systemd tells in `SERVICE_RESULT` (systemd.exec(5)).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

TASKS = ("cache-audit", "db-backup", "db-status", "experiment-check")


def add_task_ended(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options; it is for units alone, so the list of commands does not show it."""
    parser = commands.add_parser("task-ended", description="note how a timer's task ended")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--config", type=Path, required=True, help="a TOML file")


def run_task_ended(options: argparse.Namespace) -> int:
    """Note it. Raises ConfigError, OSError."""
    from appliance.config import load_config
    from appliance.task_notes import note_end

    note_end(
        load_config(options.config).paths.data_dir,
        options.task,
        is_success=os.environ.get("SERVICE_RESULT") == "success",
        now_s=time.time(),
    )
    return 0
