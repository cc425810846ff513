"""Runs PostgreSQL's programs to their end, as another user where needed. Keeps no server running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Sequence
from pathlib import Path

from appliance.dbops.cluster.account import Account
from appliance.errors import DatabaseError

log = logging.getLogger("appliance.dbops")

STOP_TIMEOUT_S = 30.0


def environment() -> dict[str, str]:
    """What PostgreSQL's programs get to see of ours: nothing; their words are English."""
    return {"LC_ALL": "C", "PATH": os.defpath}


async def run_program(
    program: Path,
    *arguments: str | Path,
    cwd: Path,
    account: Account,
    timeout_s: float,
    pass_fds: Sequence[int] = (),
    given: bytes = b"",
) -> str:
    """Run it in `cwd` with `given` as its input; returns what it printed.

    Raises DatabaseError with its last words when it fails or takes longer than `timeout_s`.
    """
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=cwd,
        env=environment(),
        stdin=PIPE if given else DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        pass_fds=pass_fds,
        start_new_session=True,
        **account.spawn_options(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate(given or None)
    except TimeoutError as error:
        await end_process(process)
        raise DatabaseError(f"{program.name} took longer than {timeout_s:.0f} s") from error
    except BaseException:
        await end_process(process)
        raise
    if process.returncode != 0:
        raise DatabaseError(f"{program.name} failed: {last_line(output)}")
    return output.decode("utf-8", "replace")


def last_line(output: bytes) -> str:
    """The line of a program's output that says why it ended."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    # Of a tool's errors the first is the cause, and the others follow from it.
    errors = [line for line in lines if "error:" in line]
    return (fatal[-1:] or errors[:1] or lines[-1:] or ["no reason given"])[0].strip()


def control_fields(text: str) -> dict[str, str]:
    """What pg_controldata prints, by name."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


async def end_process(process: Process) -> None:
    """End a child: SIGINT is PostgreSQL's fast stop, SIGQUIT its stop without a checkpoint."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("database_stop_slow", extra={"server_pid": process.pid})
        else:
            return
