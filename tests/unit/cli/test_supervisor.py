"""The supervisor: restarts what dies, stops in order, and says early that a port is taken."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from appliance.cli.supervisor import Child, ChildFailed, Process, Supervisor, bind_socket
from appliance.errors import ConfigError, DatabaseError

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('deaf', flush=True); time.sleep(600)"
)


def child(name: str, code: str, starts: list[Process], *, stop_after_s: float = 5) -> Child:
    async def start() -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        starts.append(process)
        return process

    return Child(name=name, start=start, stop_signal=signal.SIGTERM, stop_after_s=stop_after_s)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_child_that_dies_is_started_again() -> None:
    starts: list[Process] = []
    notices: list[str] = []
    supervisor = Supervisor((child("sleeper", SLEEP, starts),), notices.append)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(starts) == 1)
    starts[0].kill()
    await until(lambda: len(starts) == 2)
    await until(lambda: supervisor.pids == {"sleeper": starts[1].pid})
    supervisor.stop()
    await running
    assert await starts[1].wait() == -signal.SIGTERM
    assert notices[:2] == ["the sleeper ended (status -9)", "starting the sleeper again"]


async def test_a_child_that_dies_again_and_again_is_started_ever_more_slowly() -> None:
    starts: list[Process] = []
    supervisor = Supervisor((child("hopeless", "import sys; sys.exit(1)", starts),), print)
    begun = time.monotonic()
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(starts) == 4)
    assert time.monotonic() - begun >= 0.2 + 0.4 + 0.8
    supervisor.stop()
    await running


@pytest.mark.parametrize(
    "failure",
    [
        DatabaseError("killed while it started"),
        OSError(errno.ENOSPC, "No space left on device"),
        subprocess.TimeoutExpired("sh", 30),
    ],
)
async def test_a_child_that_has_run_and_cannot_start_is_tried_again(failure: Exception) -> None:
    starts: list[Process] = []
    once = child("database", SLEEP, starts)
    tries = 0

    async def start() -> Process:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise failure
        return await once.start()

    others: list[Process] = []
    notices: list[str] = []
    supervisor = Supervisor(
        (child("server", SLEEP, others), replace(once, start=start)), notices.append
    )
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(starts) == 1 and len(others) == 1)
    starts[0].kill()
    await until(lambda: len(starts) == 2)
    assert len(others) == 1
    told = failure.message if isinstance(failure, DatabaseError) else repr(failure)
    assert f"the database did not start: {told}" in notices
    supervisor.stop()
    await running


async def test_a_child_that_cannot_be_started_at_first_ends_everything() -> None:
    async def start() -> Process:
        raise DatabaseError("no disk")

    refused = Child(name="db", start=start, stop_signal=signal.SIGTERM, stop_after_s=1)
    with pytest.raises(DatabaseError, match="no disk"):
        await Supervisor((refused,), print).run()


async def test_children_stop_in_the_order_given_each_after_the_one_before() -> None:
    first: list[Process] = []
    second: list[Process] = []
    supervisor = Supervisor((child("first", SLEEP, first), child("second", SLEEP, second)), print)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: first and second)
    ended: list[str] = []

    async def note(name: str, process: Process) -> None:
        await process.wait()
        ended.append(name)

    notes = [
        asyncio.create_task(note("first", first[0])),
        asyncio.create_task(note("second", second[0])),
    ]
    supervisor.stop()
    await running
    await asyncio.gather(*notes)
    assert ended == ["first", "second"]


async def test_a_child_that_refuses_its_input_ends_everything() -> None:
    bad: list[Process] = []
    good: list[Process] = []
    supervisor = Supervisor(
        (child("engine", "import sys; sys.exit(2)", bad), child("server", SLEEP, good)), print
    )
    with pytest.raises(ChildFailed, match="engine"):
        await supervisor.run()
    assert len(bad) == 1
    assert await good[0].wait() != 0


async def test_a_child_deaf_to_its_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.cli.supervisor.KILL_AFTER_S", 0.2)
    starts: list[Process] = []
    supervisor = Supervisor((child("deaf", STUBBORN, starts, stop_after_s=0.2),), print)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: bool(starts))
    process = starts[0]
    assert isinstance(process, asyncio.subprocess.Process)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"deaf\n"
    supervisor.stop()
    await running
    assert await process.wait() == -signal.SIGKILL


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}.*in use"):
            bind_socket("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        bind_socket("203.0.113.1", 0)


def test_a_bound_socket_takes_connections_before_anybody_accepts_them() -> None:
    with bind_socket("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname(), 1):
        pass


async def test_one_of_several_that_cannot_start_again_is_tried_on_and_does_not_end_the_others() -> (
    None
):
    starts: list[Process] = []

    async def start() -> Process:
        code = "import sys; sys.exit(2)" if starts else SLEEP
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        starts.append(process)
        return process

    one = Child(
        name="engine-0",
        start=start,
        stop_signal=signal.SIGTERM,
        stop_after_s=5,
        others_go_on=True,
    )
    supervisor = Supervisor((one,), print)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(starts) == 1)
    starts[0].kill()
    await until(lambda: len(starts) >= 3)
    supervisor.stop()
    await running
