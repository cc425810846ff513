"""What systemd says of the appliance's units, and whether one of them ends again and again.

A service with `Restart=always` and no start limit never counts as failed: how often it was started again
tells. Never: starts or stops one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

SYSTEMCTL_TIMEOUT_S = 5.0
RESTARTS_MANY = 3
STEADY_S = 900.0
"""A service that ran so long since it was last started again is one that runs."""

_STARTED = "ExecMainStartTimestampMonotonic"
TARGET, SOCKET = "appliance.target", "appliance-server.socket"
_SHOWN = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "StatusText",
    "NRestarts",
    "Result",
    _STARTED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """A unit as systemd(1) has it. `active` and `sub` are its states, `result` is how it last ended.

    `restarts`: how often systemd started it again, since a person last did; `up_s`: since when its
    process runs, None where it has none; `status`: what the process says of itself.
    """

    active: str
    sub: str = ""
    result: str = "success"
    restarts: int = 0
    up_s: float | None = None
    status: str = ""

    @property
    def restarting(self) -> str | None:
        """How it ends by itself and is started again; None where it does not.

        Also a first time, while it is not there yet.
        """
        cause = "" if self.result == "success" else f" ({self.result})"
        if "auto-restart" in self.sub:
            return f"has ended{cause} and is about to be started again, {self._times}"
        if self.active == "activating" and self.restarts:
            return f"was started again {self._times}, and is not ready yet"
        if self.restarts >= RESTARTS_MANY and self.up_s is not None and self.up_s < STEADY_S:
            return f"was started again {self._times}, the last time {self.up_s:.0f} s ago"
        return None

    @property
    def _times(self) -> str:
        return "once" if self.restarts == 1 else f"{self.restarts} times so far"


def services() -> dict[str, ServiceState]:
    """Each of the appliance's units that systemd knows; empty where it does not run.

    A pattern finds what is loaded alone, and of a stopped appliance nothing is: the target is named.
    """
    said = systemctl("show", TARGET, "appliance*", f"--property={','.join(_SHOWN)}")
    return states_of(said, time.clock_gettime(time.CLOCK_MONOTONIC))


def states_of(said: str, now_s: float) -> dict[str, ServiceState]:
    """From the text of `systemctl show`: blocks of lines with an empty one between. Pure."""
    found: dict[str, ServiceState] = {}
    for block in said.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        state = _state(values, now_s)
        # What is named and not installed; a unit that has failed is known without its file.
        is_nothing = values.get("LoadState") == "not-found" and state.active == "inactive"
        if "Id" in values and not is_nothing:
            found[values["Id"]] = state
    return found


def is_open(states: Mapping[str, ServiceState]) -> bool:
    """Whether the services have the port: timers and the target are active without it."""
    socket = states.get(SOCKET)
    return socket is not None and socket.active == "active"


def are_stopped(states: Mapping[str, ServiceState]) -> bool:
    """Whether a person has stopped the appliance, or never started it."""
    target = states.get(TARGET)
    return target is not None and target.active == "inactive" and not is_open(states)


def _state(values: Mapping[str, str], now_s: float) -> ServiceState:
    started_us = _number(values.get(_STARTED, ""))
    is_up = values.get("ActiveState") in ("active", "reloading") and started_us
    return ServiceState(
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        result=values.get("Result", "success"),
        restarts=_number(values.get("NRestarts", "")),
        up_s=now_s - started_us / 1e6 if is_up else None,
        status=values.get("StatusText", ""),
    )


def unit_properties(unit: str, *names: str) -> dict[str, str]:
    """Properties of an installed unit; none where it is not loaded, or systemd does not run."""
    said = systemctl("show", unit, f"--property=LoadState,{','.join(names)}")
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return values if values.pop("LoadState", "") == "loaded" else {}


def systemctl(*words: str) -> str:
    """What systemctl says; nothing where systemd does not run."""
    if shutil.which("systemctl") is None or not os.path.isdir("/run/systemd/system"):
        return ""
    try:
        ended = subprocess.run(
            ("systemctl", *words),
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
