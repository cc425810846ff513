"""What `appliance doctor` looks at: the configuration, the service's user, and facts of the machine.

Owns the gathering of facts; they are data, and the checks (`doctor_files.py`, `doctor_system.py`,
`doctor_database.py`) decide from them. Never: changes or starts anything.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.config import Config
from appliance.file_access import Who

SYSTEMCTL_TIMEOUT_S = 5.0
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong: a stable name, what it is, and the command (or edit) that mends it."""

    name: str
    what: str
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts that no file of the appliance tells.

    `services`: active state by unit (`active`, `failed` …), empty without systemd. Limits are those of
    the units where they are installed, else this process's own.
    """

    now_s: float
    memory_total_bytes: int
    huge_pages_bytes: int
    gpu_nodes: tuple[Path, ...]
    open_files_max: int
    locked_bytes_max: int
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One appliance on one machine. `who` is the services' user; `home` its home, if it has one.

    `config` is what the services have, `written` what the file of settings says by itself.
    `credentials` is the folder of secrets, None where the appliance is not installed as services;
    `differing`: what `appliance system check` finds.
    """

    config_path: Path
    written: Config
    config: Config
    who: Who
    home: Path | None
    machine: Machine
    credentials: Path | None
    differing: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether the services have the port: timers and the target are active without it."""
        return self.machine.services.get("appliance-server.socket") == "active"


def look_at_machine() -> Machine:
    """The facts of this machine, now."""
    memory = _meminfo()
    limits = _unit_limits("appliance-server.service")
    own_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own_locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Machine(
        now_s=time.time(),
        memory_total_bytes=memory["MemTotal"] * KIB,
        huge_pages_bytes=memory.get("HugePages_Total", 0) * memory.get("Hugepagesize", 0) * KIB,
        gpu_nodes=tuple(sorted(Path("/dev").glob("nvidia*"))),
        open_files_max=limits.get("LimitNOFILE", own_files),
        locked_bytes_max=_unit_limits("appliance-engine@0.service").get("LimitMEMLOCK", own_locked),
        services=services(),
    )


def services() -> dict[str, str]:
    """The active state of each of the appliance's units that systemd knows."""
    said = _systemctl("list-units", "appliance*", "--all", "--output=json")
    try:
        rows = json.loads(said) if said else []
    except ValueError:
        return {}
    return {str(row["unit"]): str(row["active"]) for row in rows}


def _unit_limits(unit: str) -> dict[str, int]:
    """Limits of an installed unit in numbers; an unlimited one is the largest."""
    said = _systemctl("show", unit, "--property=LoadState,LimitNOFILE,LimitMEMLOCK")
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if values.pop("LoadState", "") != "loaded":
        return {}
    return {name: int(text) if text.isdecimal() else 2**63 for name, text in values.items()}


def _systemctl(*words: str) -> str:
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


def _meminfo() -> dict[str, int]:
    """/proc/meminfo, proc_meminfo(5): kB, or a plain number for HugePages_Total."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(rest.split()[0]) for name, rest in pairs}
