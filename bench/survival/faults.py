"""What can be done to a running product, each kind by its name. Never: decides when, or judges.

A fault is over when its function returns; that the product is whole again is seen by its users.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import psutil

from bench.survival.clock import WallClock
from bench.survival.disk import SmallDisk
from bench.survival.units import Units

FROZEN_POSTGRES_S = 3.0
FULL_S = 2.0
ENDS_S = 0.5
JUMPS_S = (-86_400, -3_600, -60, 60, 3_600, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """The running product; without `disk` or `clock` their faults are not made."""

    units: Units
    disk: SmallDisk | None
    clock: WallClock | None
    random: random.Random


Fault = Callable[[Victim], Awaitable[bool]]
"""Does it, and gives whether it found what to do it to: a process may be on its way out."""


async def kill_server(victim: Victim) -> bool:
    """kill -9 of the server."""
    return _kill_main(victim, "server")


async def kill_engine(victim: Victim) -> bool:
    """kill -9 of the engine."""
    return _kill_main(victim, "engine")


async def kill_keeper(victim: Victim) -> bool:
    """kill -9 of `appliance postgres`, and so of all of PostgreSQL."""
    return _kill_main(victim, "postgres")


async def kill_postmaster(victim: Victim) -> bool:
    """kill -9 of PostgreSQL's first process."""
    return _kill_some(victim, lambda process, parent: parent == victim.units.main("postgres"))


async def kill_backend(victim: Victim) -> bool:
    """kill -9 of one of PostgreSQL's others: a session, the checkpointer, the WAL writer …"""
    is_killed = _kill_some(victim, lambda process, parent: parent != victim.units.main("postgres"))
    # All but the logger's end is the end of them all, which takes PostgreSQL a moment.
    await asyncio.sleep(ENDS_S)
    return is_killed


async def freeze_server(victim: Victim) -> bool:
    """The server's loop stands still, for ever: its watchdog's affair."""
    return _freeze_main(victim, "server")


async def freeze_engine(victim: Victim) -> bool:
    """The engine's loop stands still, for ever."""
    return _freeze_main(victim, "engine")


async def freeze_postgres(victim: Victim) -> bool:
    """All of PostgreSQL stands still for a while, and goes on."""
    frozen = [process for unit, process in victim.units.processes() if unit == "postgres"]
    for process in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    await asyncio.sleep(FROZEN_POSTGRES_S)
    for process in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    return bool(frozen)


async def fill_disk(victim: Victim) -> bool:
    """Nothing more fits on the disk, for a while."""
    assert victim.disk is not None
    victim.disk.fill()
    await asyncio.sleep(FULL_S)
    victim.disk.empty()
    return True


async def jump_clock(victim: Victim) -> bool:
    """The wall clock is set forward or back, by a minute to a day."""
    assert victim.clock is not None
    victim.clock.jump(victim.random.choice(JUMPS_S))
    return True


async def cut_power(victim: Victim) -> bool:
    """Every process is gone at once, and so is what the disk was not told to keep."""
    if victim.disk is not None:
        victim.disk.cut()
    victim.units.cut_power()
    if victim.disk is not None:
        await until_unused(victim)
        victim.disk.restore()
    await victim.units.restore_power()
    return True


async def until_unused(victim: Victim) -> None:
    """A killed process keeps the disk for a moment."""
    async with asyncio.timeout(30):
        while _living(victim):  # noqa: ASYNC110 - state of other processes
            await asyncio.sleep(0.02)


ALL = ("server", "engine", "postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault: its share of the schedule, and the units that it makes start again.

    `kills`: whether it is a process that was picked and killed. A power cut, which takes them all, is one
    fault and no kill.
    """

    do: Fault
    weight: int
    restarts: tuple[str, ...] = ()
    kills: bool = False


KINDS: Mapping[str, Kind] = {
    "kill server": Kind(do=kill_server, weight=28, kills=True, restarts=("server",)),
    "kill engine": Kind(do=kill_engine, weight=12, kills=True, restarts=("engine",)),
    "kill postmaster": Kind(do=kill_postmaster, weight=14, kills=True, restarts=("postgres",)),
    "kill backend": Kind(do=kill_backend, weight=20, kills=True),
    "kill postgres unit": Kind(do=kill_keeper, weight=6, kills=True, restarts=("postgres",)),
    "freeze server": Kind(do=freeze_server, weight=3, restarts=("server",)),
    "freeze engine": Kind(do=freeze_engine, weight=3, restarts=("engine",)),
    "freeze postgres": Kind(do=freeze_postgres, weight=3),
    "disk full": Kind(do=fill_disk, weight=3),
    "clock jump": Kind(do=jump_clock, weight=4),
    "power cut": Kind(do=cut_power, weight=4, restarts=ALL),
}


def possible(victim: Victim) -> dict[str, Kind]:
    """The kinds that this machine lets one do."""
    needed = {"disk full": victim.disk, "clock jump": victim.clock}
    return {name: kind for name, kind in KINDS.items() if needed.get(name, victim) is not None}


def _kill_main(victim: Victim, unit: str) -> bool:
    return _signal_main(victim, unit, signal.SIGKILL)


def _freeze_main(victim: Victim, unit: str) -> bool:
    # One that starts has no watchdog yet: it would stand still until its start's time is over.
    return victim.units.states[unit].is_ready and _signal_main(victim, unit, signal.SIGSTOP)


def _signal_main(victim: Victim, unit: str, number: signal.Signals) -> bool:
    main = victim.units.main(unit)
    if main is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(main)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.send_signal(number)
            return True
    return False


def _kill_some(victim: Victim, is_meant: Callable[[psutil.Process, int], bool]) -> bool:
    main = victim.units.main("postgres")
    candidates = []
    for unit, process in victim.units.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if unit == "postgres" and process.pid != main and is_meant(process, process.ppid()):
                candidates.append(process)
    if not candidates:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.random.choice(candidates).kill()
        return True
    return False


def _living(victim: Victim) -> list[psutil.Process]:
    living = []
    for _, process in victim.units.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living
