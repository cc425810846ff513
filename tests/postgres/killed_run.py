"""`appliance db run`, killed with -9 in a step: the beginning of the step's key, then the command.

It kills itself: a test that waits for a line and then kills may be slower than the steps that follow.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from appliance.cli import db_run_terminal
from appliance.cli.main import main
from appliance.dbops.plan.step import Step

IN_THE_STEP_S = 0.01
"""Its statement has been sent by then."""

IN_AUTOVACUUM_S = 0.15
"""The settings are changed by then; what came of it is looked at after 0.2 s."""


ROOT = Path(__file__).parents[2]


def run_command(
    directory: Path, state_dir: Path, *options: str, killed_in: str | None
) -> subprocess.CompletedProcess[str]:
    """`appliance db run --execute --json` in a process of its own, to its end or to a step's."""
    program = ["appliance.cli.main"]
    if killed_in is not None:
        program = ["tests.postgres.killed_run", killed_in]
    words = ("db", "run", "--execute", "--json", "--data-dir", directory, "--state-dir", state_dir)
    return subprocess.run(
        [sys.executable, "-m", *program, *words, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def ended_steps(run: subprocess.CompletedProcess[str]) -> list[str]:
    """The steps that it told to be done; a last line may be torn by the kill."""
    lines = [line for line in run.stderr.splitlines(keepends=True) if line.endswith("\n")]
    events = [json.loads(line) for line in lines]
    return [one["key"] for one in events if one["event"] == "ended" and one["state"] == "done"]


def killed_in(key: str) -> type[db_run_terminal.JsonReport]:
    """A report that ends the process in a step whose key begins so."""

    class Killing(db_run_terminal.JsonReport):
        def started(self, step: Step) -> None:
            super().started(step)
            if step.key.startswith(key):
                after_s = IN_AUTOVACUUM_S if key.startswith("autovacuum") else IN_THE_STEP_S
                loop = asyncio.get_running_loop()
                loop.call_later(after_s, os.kill, os.getpid(), signal.SIGKILL)

    return Killing


if __name__ == "__main__":
    db_run_terminal.JsonReport = killed_in(sys.argv[1])  # type: ignore[misc]
    sys.exit(main(sys.argv[2:]))
