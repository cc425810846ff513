"""What a person sees on the terminal while the appliance starts. Never: logs.

Bars and colours on a terminal; plain lines, one a stage, where output goes to a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

ProgressCallback = Callable[[str, float], None]
"""Called with the name of a stage and how much of it is done, from 0 to 1."""

console = Console(highlight=False)


def say(words: str) -> None:
    """What is being waited for, in a line."""
    console.print(f"  {words} …", soft_wrap=True)


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """A bar for each stage as it is first reported; finished stages stay on the screen."""
    columns = (
        TextColumn("  {task.description:<28}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def report(stage: str, done: float) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=1.0)
                if not console.is_terminal:
                    console.print(f"  {stage} …")
            progress.update(bars[stage], completed=min(done, 1.0))

        yield report
