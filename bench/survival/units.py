"""Runs the appliance's units as systemd does on a box, without one: the same commands, the same protocol.

A unit that ends is started again, what it left behind is killed with it, a watchdog that is not fed kills
it, the listening socket outlives the server. Only the times are shorter than those of `systemd/`, so that
a thousand faults fit into an hour. Never: says which fault comes when.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import psutil

RESTART_S = 0.1
"""`RestartSec=`; 2 s on a box."""
ABORT_S = 5.0
STOP_S_MAX = 60.0
LOOK_EVERY_S = 0.05
ENTRY = ("-m", "appliance.cli.main")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One service: what follows the interpreter, and how long its loop may stand still."""

    name: str
    arguments: tuple[str, ...]
    watchdog_s: float | None = None


@dataclass(slots=True)
class State:
    """A unit as it is now. `ended`: how each of its processes ended, newest last."""

    unit: Unit
    process: asyncio.subprocess.Process | None = None
    is_ready: bool = False
    fed_at: float = 0.0
    aborted_at: float | None = None
    starts: int = 0
    watchdogs: int = 0
    ended: list[int] = field(default_factory=list)

    def hear(self, text: str, now: float) -> None:
        """What its process says, in lines of sd_notify(3)."""
        lines = text.split("\n")
        if "READY=1" in lines:
            self.is_ready = True
            self.fed_at = now
        if "WATCHDOG=1" in lines:
            self.fed_at = now
        if "STOPPING=1" in lines:
            self.is_ready = False


class Units:
    """Keeps units running. Use as an async context; `stop` ends them in the order given, by SIGTERM."""

    def __init__(
        self, units: tuple[Unit, ...], folder: Path, environment: Mapping[str, str]
    ) -> None:
        """`folder` gets the sockets for notices and a log for each unit."""
        self.states = {unit.name: State(unit) for unit in units}
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._folder = folder
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **environment}
        self._has_power = asyncio.Event()
        self._is_stopping = False
        self._naming = asyncio.Lock()
        """Held while a process is started: nobody knows yet whose it is."""
        self._tasks: list[asyncio.Task[None]] = []
        self._hearing: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Where the server answers."""
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    @property
    def are_ready(self) -> bool:
        """Whether each has said so since it was started."""
        return all(state.is_ready for state in self.states.values())

    async def __aenter__(self) -> Units:
        # What a killed process leaves behind becomes a child of this one, and is found.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._has_power.set()
        for state in self.states.values():
            self._listen(state)
            self._tasks.append(asyncio.create_task(self._keep(state)))
        self._tasks.append(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._kill_all()
        for hearing in self._hearing:
            asyncio.get_running_loop().remove_reader(hearing)
            hearing.close()
        self.listening.close()

    async def until_ready(self, timeout_s: float) -> None:
        """Raises TimeoutError naming who is not."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.are_ready:  # noqa: ASYNC110 - state of other processes
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            late = [name for name, state in self.states.items() if not state.is_ready]
            raise TimeoutError(f"not ready after {timeout_s:g} s: {', '.join(late)}") from None

    def main(self, name: str) -> int | None:
        """The process id of a unit's main process."""
        process = self.states[name].process
        return None if process is None else process.pid

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Every process below this one, with the name of its unit."""
        mains = {self.main(name): name for name in self.states}
        found: list[tuple[str, psutil.Process]] = []
        for child in psutil.Process().children():
            unit = mains.get(child.pid, "left behind")
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [(unit, one) for one in (child, *child.children(recursive=True))]
        return found

    def cut_power(self) -> None:
        """Kill every process at once, and start none until `restore_power`."""
        self._has_power.clear()
        self._kill_all()

    async def restore_power(self) -> None:
        """Start all again, once the last of the dead is gone."""
        while any(state.process for state in self.states.values()):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        self._has_power.set()

    async def stop(self) -> dict[str, int]:
        """End all in order; gives each exit status. One that takes too long is killed (-9)."""
        self._is_stopping = True
        statuses = {}
        for name, state in self.states.items():
            process = state.process
            if process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    statuses[name] = await process.wait()
            except TimeoutError:
                process.kill()
                statuses[name] = await process.wait()
        return statuses

    async def restart(self, name: str, timeout_s: float) -> None:
        """As `systemctl restart`: by SIGTERM, until it is ready again."""
        state = self.states[name]
        before = state.starts
        if state.process is not None:
            with contextlib.suppress(ProcessLookupError):
                state.process.terminate()
        async with asyncio.timeout(timeout_s):
            while state.starts == before or not state.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_EVERY_S)

    async def _keep(self, state: State) -> None:
        while not self._is_stopping:
            await self._has_power.wait()
            async with self._naming:
                with (self._folder / f"{state.unit.name}.log").open("ab") as log:
                    state.process = await self._spawn(state, log)
            state.starts += 1
            if not self._has_power.is_set():
                state.process.kill()
            status = await state.process.wait()
            state.ended.append(status)
            state.process, state.is_ready, state.aborted_at = None, False, None
            async with self._naming:
                self._bury_left_behind()
            await asyncio.sleep(RESTART_S)

    async def _spawn(self, state: State, log: BinaryIO) -> asyncio.subprocess.Process:
        unit = state.unit
        environment = {**self._environment, "NOTIFY_SOCKET": str(self._notices(unit))}
        if unit.watchdog_s is not None:
            environment["WATCHDOG_USEC"] = str(int(unit.watchdog_s * 1e6))
        handed = self.listening.fileno()
        listens = unit.name == "server"
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *unit.arguments,
            *(("--listen-fd", str(handed)) if listens else ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(handed,) if listens else (),
            start_new_session=True,
        )

    async def _watch(self) -> None:
        """Abort who does not feed its watchdog, as systemd does: SIGABRT and SIGCONT, then SIGKILL."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            for state in self.states.values():
                process, limit_s = state.process, state.unit.watchdog_s
                if process is None or limit_s is None or not state.is_ready:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    if state.aborted_at is None and now - state.fed_at > limit_s:
                        state.aborted_at = now
                        state.watchdogs += 1
                        process.send_signal(signal.SIGABRT)
                        process.send_signal(signal.SIGCONT)
                    elif state.aborted_at is not None and now - state.aborted_at > ABORT_S:
                        process.kill()

    def _listen(self, state: State) -> None:
        path = self._notices(state.unit)
        path.unlink(missing_ok=True)
        hearing = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        hearing.setblocking(False)
        hearing.bind(str(path))

        def hear() -> None:
            with contextlib.suppress(BlockingIOError):
                while text := hearing.recv(65536):
                    state.hear(text.decode(), time.monotonic())

        asyncio.get_running_loop().add_reader(hearing, hear)
        self._hearing.append(hearing)

    def _notices(self, unit: Unit) -> Path:
        return self._folder / f"{unit.name}.notify"

    def _bury_left_behind(self) -> None:
        """Kill what belongs to no unit's main process any more (on a box: to its control group)."""
        for unit, process in self.processes():
            if unit == "left behind":
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _kill_all(self) -> None:
        for _, process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._bury_left_behind()
