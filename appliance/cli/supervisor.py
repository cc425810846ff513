"""The supervisor starts the processes of one box, restarts those that die, and stops all in order.

Owns: the child processes. Never: serves a request or loads a model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance.cli.exit_codes import EXIT_BAD_INPUT
from appliance.errors import ApplianceError, ConfigError

log = logging.getLogger("appliance.supervisor")

RESTART_DELAY_MIN_S = 0.2
RESTART_DELAY_MAX_S = 10.0
STABLE_AFTER_S = 30.0
KILL_AFTER_S = 10.0
LISTEN_BACKLOG = 1024


class Process(Protocol):
    """A running child, of asyncio's subprocess or of the database cluster."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...
    def send_signal(self, signal: int, /) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """How one process is started and stopped.

    `stop_after_s` bounds the orderly stop; then the process is killed. `others_go_on`: there are more
    of its kind, so one that has run and then cannot start is tried again and not the end of all.
    """

    name: str
    start: Callable[[], Awaitable[Process]]
    stop_signal: signal.Signals
    stop_after_s: float
    others_go_on: bool = False


class ChildFailed(ApplianceError):
    """A child ended in a way that starting it again cannot mend."""

    code = "config_error"


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a TCP socket without listening yet; raises ConfigError when the port cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            # Two sockets may be bound with SO_REUSEADDR as long as none listens, so listen to be sure.
            bound.listen(LISTEN_BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another (server.port, --port)"
        ) from error
    return bound


async def spawn(
    command: str,
    config_path: Path,
    *arguments: str,
    pass_fds: tuple[int, ...] = (),
    log_path: Path | None,
    environment: dict[str, str],
) -> Process:
    """Start `appliance COMMAND --config FILE …` with this interpreter, its log going to `log_path`."""
    output = None if log_path is None else log_path.open("ab")
    try:
        # A session of its own: Ctrl-C reaches the supervisor alone, which then stops all in order.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "appliance.cli.main",
            command,
            "--config",
            str(config_path),
            "--parent-pid",
            str(os.getpid()),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            env=environment,
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()


class Supervisor:
    """Runs children until `stop`; the order given is the order of stopping.

    `notice` is told in words what a person at the terminal would want to know.
    """

    def __init__(self, children: tuple[Child, ...], notice: Callable[[str], None]) -> None:
        self._children = children
        self._notice = notice
        self._running: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by child name."""
        return {name: process.pid for name, process in self._running.items()}

    def stop(self) -> None:
        """Begin an orderly stop; called a second time, stop at once."""
        if self._stopping.is_set():
            self._hurry.set()
            self._notice("stopping now")
        else:
            self._notice("stopping (open replies get a moment to end; again to stop at once)")
        self._stopping.set()

    async def run(self) -> None:
        """Keep all children running until `stop`, then stop them one after the other.

        Raises ChildFailed when a child refuses its configuration or its model (see `Child`).
        """
        tasks = [asyncio.create_task(self._keep(child)) for child in self._children]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            for task in done - {stopping}:
                task.result()
        finally:
            stopping.cancel()
            for child in self._children:
                await self._stop_child(child)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        delay_s = RESTART_DELAY_MIN_S
        has_run = False
        while not self._stopping.is_set():
            started = time.monotonic()
            status = await self._run_once(child, has_run=has_run)
            if self._stopping.is_set():
                return
            if status != EXIT_BAD_INPUT:
                has_run = True
            elif not (child.others_go_on and has_run):
                raise ChildFailed(f"the {child.name} refused to start (see its last line)")
            if time.monotonic() - started > STABLE_AFTER_S:
                delay_s = RESTART_DELAY_MIN_S
            await self._pause(delay_s)
            if not self._stopping.is_set():
                self._notice(f"starting the {child.name} again")
            delay_s = min(delay_s * 2, RESTART_DELAY_MAX_S)

    async def _run_once(self, child: Child, *, has_run: bool) -> int | None:
        """Its exit status; None when it has run before and could not be started now."""
        try:
            process = await child.start()
        except Exception as error:
            # It is killed again while it starts, or the disk is full: what goes on without it is not to
            # end with it, whatever the failure.
            if not has_run:
                raise
            is_expected = isinstance(error, ApplianceError)
            told = error.message if isinstance(error, ApplianceError) else repr(error)
            log.warning(
                "child_not_started",
                extra={"child": child.name, "reason": told},
                exc_info=None if is_expected else error,
            )
            self._notice(f"the {child.name} did not start: {told}")
            return None
        self._running[child.name] = process
        log.info("child_started", extra={"child": child.name, "child_pid": process.pid})
        status = await process.wait()
        self._running.pop(child.name, None)
        if not self._stopping.is_set():
            log.warning("child_ended", extra={"child": child.name, "status": status})
            self._notice(f"the {child.name} ended (status {status})")
        return status

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _stop_child(self, child: Child) -> None:
        process = self._running.get(child.name)
        if process is None:
            return
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(process.wait())
        try:
            _signal(process, child.stop_signal)
            await asyncio.wait(
                [hurry, ended], timeout=child.stop_after_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended.done():
                _signal(process, child.stop_signal)
                await asyncio.wait([ended], timeout=KILL_AFTER_S)
            if not ended.done():
                log.warning("child_killed", extra={"child": child.name, "child_pid": process.pid})
                _signal(process, signal.SIGKILL)
            await ended
        finally:
            hurry.cancel()


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return  # It ended by itself between the look and the signal.
