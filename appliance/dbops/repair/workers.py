"""Workers side by side, of whom none goes on once another has failed. Never: knows what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable


async def together(workers: Iterable[Coroutine[None, None, None]]) -> None:
    """Until all have ended. Where one raises, the others are cancelled and waited for, so that nobody
    works with what is closed next; then what the first has raised is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
