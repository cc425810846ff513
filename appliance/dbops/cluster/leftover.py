"""What an earlier run left on a data folder: its lock file, its server, sessions that lost their server.

Ends processes that work in the folder, and no others; removes empty lock files. Starts no server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from appliance.dbops.cluster.account import Account
from appliance.dbops.settings import PORT

log = logging.getLogger("appliance.dbops")

POLL_S = 0.05
FAST_STOP_S = 30.0
IMMEDIATE_STOP_S = 10.0
LIST_TIMEOUT_S = 30.0
PROC = Path("/proc")

# Loaded here and not in the child, which between fork and exec should do as little as it can.
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""

_LIST = """
for process in /proc/[0-9]*; do
    if [ "$process/cwd" -ef . ] && read -r name < "$process/comm" && [ "$name" = postgres ]; then
        echo "${process#/proc/}"
    fi
done 2> /dev/null
true
"""
"""Every PostgreSQL process works in its data folder. Listed by a shell under the cluster's own user:
even root may not look at another user's `cwd` in a container without CAP_SYS_PTRACE."""


def remove_empty_locks(directory: Path) -> None:
    """Remove lock files of PostgreSQL's that hold nothing, in a folder that is ours and serves nobody.

    PostgreSQL makes such a file, then writes it: killed in between, or by a power cut, it leaves one that
    each later start refuses ("lock file is empty"), for it cannot know that nobody is starting.
    """
    for path in (directory / "postmaster.pid", directory / f".s.PGSQL.{PORT}.lock"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size == 0:
                path.unlink()
                log.warning("empty_lock_removed", extra={"file": str(path)})


def recorded_pid(directory: Path) -> int | None:
    """The process id in `postmaster.pid`, None when there is no such file or it holds none."""
    lines = _lock_file(directory)
    return int(lines[0]) if lines and lines[0].isdecimal() and int(lines[0]) > 0 else None


def recorded_status(directory: Path) -> str:
    """The state line of `postmaster.pid` (`starting`, `ready`), empty before it is written."""
    lines = _lock_file(directory)
    return lines[7].strip() if len(lines) > 7 else ""


def _lock_file(directory: Path) -> list[str]:
    try:
        return (directory / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def processes_in(directory: Path, account: Account) -> list[int]:
    """The PostgreSQL processes that work in this folder, servers and sessions."""
    answer: subprocess.CompletedProcess[str] = subprocess.run(
        ["/bin/sh", "-c", _LIST],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        encoding="ascii",
        timeout=LIST_TIMEOUT_S,
        **account.spawn_options(),
    )
    return [int(word) for word in answer.stdout.split()]


async def stop_processes(pids: Sequence[int], server: int | None) -> bool:
    """End the `server` among them, fast if it can, then the rest; True when all have ended.

    A session whose server is gone is ended at once: it may compute for hours before it looks up, and
    until then no new server may start. What it had not committed is rolled back either way.
    """
    if server is not None and server in pids:
        await _stop([server], (signal.SIGINT, FAST_STOP_S), (signal.SIGQUIT, IMMEDIATE_STOP_S))
    return await _stop(pids, (signal.SIGQUIT, IMMEDIATE_STOP_S), (signal.SIGKILL, IMMEDIATE_STOP_S))


async def _stop(pids: Sequence[int], *steps: tuple[signal.Signals, float]) -> bool:
    for number, patience_s in steps:
        for pid in filter(_is_alive, pids):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        if await _all_gone(pids, patience_s):
            return True
    return False


async def _all_gone(pids: Sequence[int], patience_s: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    while any(map(_is_alive, pids)):
        if clock() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _is_alive(pid: int) -> bool:
    """A zombie holds nothing any more; whoever is its parent reaps it in its own time."""
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2][1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_with_parent() -> None:
    """Called in a new child: stop fast when the parent is gone, however it went."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
