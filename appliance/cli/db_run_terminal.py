"""A run on a terminal, or as lines of JSON for a program: what it tells, and how it asks.

Never: decides anything for the person who is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from appliance.cli.db_plan_text import STAGES, step_lines
from appliance.cli.plain_text import size, visible
from appliance.counted import counted
from appliance.dbops.duration import duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from appliance.dbops.plan.plan import Plan
    from appliance.dbops.plan.step import Choice, Step
    from appliance.dbops.repair.crew import Confirm
    from appliance.dbops.repair.progress import Progress
    from appliance.dbops.repair.result import Result


_QUIET = ("vacuum", "repair what was skipped")
LINE_BYTES_MAX = 4096
"""A terminal gives no longer ones."""
TOLD_FROM_S = 5.0
"""A VACUUM that took this long is told by name."""


class TerminalReport:
    """Lines for a person; a running VACUUM has one that is written over where there is a terminal.

    While a question stands, nothing is written over it, and what is said is followed by it again.
    """

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty()
        self._cells = 0
        """Width of the line that is to be written over."""
        self._question = ""
        """The one that stands."""

    @property
    def is_asking(self) -> bool:
        """Whether a question stands."""
        return bool(self._question)

    def planned(self, plan: Plan) -> None:
        """A stage begins, or is planned anew."""
        stage = plan.next_stage
        if stage is not None:
            steps = plan.stage(stage)
            count, total = counted(len(steps), "step"), sum(step.bytes for step in steps)
            self.said(f"stage {stage}, {STAGES[stage]}: {count}, {size(total)} to read")

    def started(self, step: Step) -> None:
        """A step is taken. Of VACUUMs there are hundreds: they show in the progress."""
        if step.kind.value not in _QUIET:
            self.said(f"  {step.kind.value}: {visible(step.object)}")

    def progressed(self, progress: Progress) -> None:
        """Once a second."""
        if self.is_asking:
            return
        running = ", ".join(f"{share:.0%} of {visible(name)}" for name, share in progress.running)
        line = (
            f"  {progress.steps_done} of {counted(progress.steps_total, 'step')}, "
            f"{size(progress.bytes_done)} of {size(progress.bytes_total)}, "
            f"{progress.rate_bytes_per_s / 1e6:.0f} MB/s, "
            f"{duration(progress.seconds_left)} left{'; ' if running else ''}{running}"
        )
        if self._is_live:
            # Not the last column: a terminal may begin a new line there.
            width = shutil.get_terminal_size().columns - 1
            if cell_len(line) > width:
                line = f"{set_cell_size(line, width - 1)}…"
            print(f"\r{set_cell_size(line, max(self._cells, cell_len(line)))}", end="", flush=True)
            self._cells = cell_len(line)
        else:
            print(line, flush=True)

    def ended(self, step: Step, result: Result) -> None:
        """A step has ended, or was not taken."""
        is_usual = step.kind.value in _QUIET and result.state.value in ("done", "skipped")
        if is_usual and result.seconds < TOLD_FROM_S:
            return
        words = f": {visible(result.words)}" if result.words else ""
        took = f" ({duration(result.seconds)})" if result.seconds >= 1 else ""
        self.said(f"  {result.state.value}: {visible(step.object)}{took}{words}")

    def said(self, words: str) -> None:
        """A line of its own."""
        if self._cells:
            print("\r" + " " * self._cells + "\r", end="")
            self._cells = 0
        if self.is_asking:
            print()
        print(words, flush=True)
        if self.is_asking:
            print(self._question, end="", flush=True)

    async def ask(self, step: Step) -> Choice | None:
        """Show what is done and lost; the answer is the consent's whole name, anything else is a no."""
        self.said("\n".join(step_lines(step)))
        names = " or ".join(choice.consent.value for choice in step.choices)
        self._question = f"  type {names} to do it, anything else to leave it: "
        print(self._question, end="", flush=True)
        try:
            answer = (await _line(sys.stdin.fileno())).strip()
        finally:
            self._question = ""
        return next((choice for choice in step.choices if choice.consent.value == answer), None)


class JsonReport:
    """One JSON object a line on standard error; the outcome alone goes to standard output."""

    def planned(self, plan: Plan) -> None:
        """A stage begins, or is planned anew."""
        self._tell("planned", stage=plan.next_stage, steps=len(plan.steps))

    def started(self, step: Step) -> None:
        """A step is taken."""
        self._tell("started", key=step.key, object=step.object)

    def progressed(self, progress: Progress) -> None:
        """Once a second."""
        self._tell(
            "progress",
            stage=progress.stage,
            steps_done=progress.steps_done,
            steps_total=progress.steps_total,
            bytes_done=progress.bytes_done,
            bytes_total=progress.bytes_total,
            rate_bytes_per_s=round(progress.rate_bytes_per_s),
            seconds_left=round(progress.seconds_left, 1),
        )

    def ended(self, step: Step, result: Result) -> None:
        """A step has ended, or was not taken."""
        self._tell("ended", key=step.key, state=result.state.value, words=result.words)

    def said(self, words: str) -> None:
        """Anything else."""
        self._tell("said", words=words)

    def _tell(self, event: str, **fields: object) -> None:
        print(
            json.dumps({"event": event, **fields}, ensure_ascii=False), file=sys.stderr, flush=True
        )


def confirm_by(
    agreed: frozenset[str], ask: Callable[[Step], Awaitable[Choice | None]] | None
) -> Confirm:
    """Consent from what was agreed to beforehand, else from whoever is asked; None: nobody is."""

    async def confirm(step: Step) -> Choice | None:
        for choice in step.choices:
            if choice.consent.value in agreed:
                return choice
        return None if ask is None else await ask(step)

    return confirm


async def _line(descriptor: int) -> str:
    """What is typed at a terminal, to the end of the line. Not in a thread: Ctrl-C could not end one."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, LINE_BYTES_MAX).decode("utf-8", "replace")
