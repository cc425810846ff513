"""What an earlier run left in a data folder: its lock file, and perhaps its server. Starts nothing."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from pathlib import Path

POLL_S = 0.05
FAST_STOP_S = 30.0
IMMEDIATE_STOP_S = 10.0
PROC = Path("/proc")

# Loaded here and not in the child, which between fork and exec should do as little as it can.
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""


def recorded_pid(directory: Path) -> int | None:
    """The process id in `postmaster.pid`, None when there is no such file or it holds none."""
    try:
        first = (directory / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return None
    return int(first) if first.isdecimal() and int(first) > 0 else None


def recorded_status(directory: Path) -> str:
    """The state line of `postmaster.pid` (`starting`, `ready`), empty before it is written."""
    try:
        lines = (directory / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return lines[7].strip() if len(lines) > 7 else ""


def is_server_of(directory: Path, pid: int) -> bool:
    """Whether process `pid` is a PostgreSQL server on this folder, and not one that got its number.

    A server's working folder is its data folder. Where that may not be looked at (root in a container
    without CAP_SYS_PTRACE), a `postgres` of the folder's owner is taken for it.
    """
    process = PROC / str(pid)
    try:
        if (process / "comm").read_text(encoding="utf-8").strip() != "postgres":
            return False
        if process.stat().st_uid != directory.stat().st_uid:
            return False
    except OSError:
        return False
    try:
        return (process / "cwd").samefile(directory)
    except PermissionError:
        return True
    except OSError:
        return False


async def stop_server(pid: int) -> bool:
    """End a server that is not our child: fast, then at once, then by force. True when it is gone."""
    for number, patience_s in (
        (signal.SIGINT, FAST_STOP_S),
        (signal.SIGQUIT, IMMEDIATE_STOP_S),
        (signal.SIGKILL, IMMEDIATE_STOP_S),
    ):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        if await _gone(pid, patience_s):
            return True
    return False


async def _gone(pid: int, patience_s: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    while clock() < deadline:
        if not _is_alive(pid):
            return True
        await asyncio.sleep(POLL_S)
    return False


def _is_alive(pid: int) -> bool:
    """A zombie holds nothing any more; whoever is its parent reaps it in its own time."""
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2][1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_with_parent() -> None:
    """Called in a new child: stop fast when the parent is gone, however it went."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
