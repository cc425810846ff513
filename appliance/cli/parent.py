"""Ties a process's life to its supervisor's, so that `kill -9` of the supervisor leaves no orphan."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent ends."""


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGTERM when the parent ends; send it now when it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)
