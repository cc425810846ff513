"""`appliance db drill --hold`: one situation, left running for a person to repair from another shell.

Its server stops for `appliance db stop`, and starts again behind a repair that had the folder meanwhile.
Never: repairs anything.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.db_start import PURPOSE

if TYPE_CHECKING:
    from appliance.dbops.cluster.binaries import Binaries
    from appliance.dbops.drill.situation import Situation
    from appliance.dbops.drill.throwaway import ThrowAway

POLL_S = 0.2


async def hold(name: str, folder: Path, binaries: Binaries) -> int:
    """Make it, say what to type, and keep it until Ctrl-C; returns the exit code."""
    from appliance.dbops.drill.drill import Drill
    from appliance.dbops.drill.registry import situation
    from appliance.dbops.drill.throwaway import ThrowAway

    cluster = ThrowAway(folder / name, binaries, purpose=PURPOSE)
    await cluster.create()
    drill, what = Drill(cluster), situation(name)
    started = time.monotonic()
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    try:
        await drill.drive(what, lambda words: _say(f"  {words}"))
        _say(
            f"{name}: writes are refused, after {time.monotonic() - started:.1f} s. Repair it with"
        )
        for command in _commands(what):
            _say(f"    appliance db {command} --data-dir {shlex.quote(str(cluster.directory))}")
        _say("Ctrl-C here ends the drill.")
        while True:
            await asked_to_stop.wait()
            asked_to_stop.clear()
            await drill.end_actors()
            await cluster.stop()
            _say("The server has stopped; it starts again after a run that has had it.")
            await _wait_for_a_run(cluster)
            await cluster.start()
            _say("The server runs again.")
    finally:
        await drill.end_actors()
        await cluster.stop()


def _commands(what: Situation) -> tuple[str, ...]:
    run: tuple[str, ...] = ("run --execute",)
    if what.single_user:
        run = ("stop", "run --execute --single-user")
    return ("status", "diagnose", "plan", *run, "verify")


async def _wait_for_a_run(cluster: ThrowAway) -> None:
    """Until somebody else has taken the folder's lock, and given it up."""
    from appliance.dbops.cluster.cluster import cluster_lock

    lock = cluster_lock(cluster.directory)
    while lock.holder() is None:  # noqa: ASYNC110 - state of another process
        await asyncio.sleep(POLL_S)
    while lock.holder() is not None:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


def _say(words: str) -> None:
    print(words, flush=True)
