"""What `appliance doctor` looks at: the configuration, the service's user, and facts of the machine.

Owns the gathering of facts; they are data, and the checks (`doctor_files.py`, `doctor_system.py`,
`doctor_database.py`) decide from them. Never: changes or starts anything.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.cli.service_states import (
    ServiceState,
    are_stopped,
    is_open,
    services,
    unit_properties,
)
from appliance.config import Config
from appliance.file_access import Who

KIB = 1024
ENGINE_PROPERTIES = (
    "LimitMEMLOCK",
    "MemoryMax",
    "ProtectSystem",
    "ReadWritePaths",
    "StateDirectory",
    "CacheDirectory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong: a stable name, what it is, and the command (or edit) that mends it."""

    name: str
    what: str
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts that no file of the appliance tells.

    `services` by unit, empty without systemd. Limits are those of the units where they are installed,
    else this process's own. `engine_writes`: the folders that an engine's unit may write into, None
    where nothing keeps it from any.
    """

    now_s: float
    memory_total_bytes: int
    huge_pages_bytes: int
    gpu_nodes: tuple[Path, ...]
    open_files_max: int
    locked_bytes_max: int
    engine_bytes_max: int
    engine_writes: tuple[Path, ...] | None = None
    services: Mapping[str, ServiceState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What an installation would change, or why there can be none: at most one of these.

    `other`: another version is installed; `unreachable`: services cannot reach the program; `refused`:
    the settings are no service's; `unread`: this user may not read them all; `differing`: the steps of
    `appliance system check`.
    """

    other: str | None = None
    unreachable: str | None = None
    refused: str | None = None
    unread: str | None = None
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One appliance on one machine. `who` is the services' user; `home` its home, if it has one.

    `config` is what the services have, `written` what the file of settings says by itself.
    `credentials` is the folder of secrets, None where the appliance is not installed as services.
    """

    config_path: Path
    written: Config
    config: Config
    who: Who
    home: Path | None
    machine: Machine
    credentials: Path | None
    installed: Installed = Installed()

    @property
    def is_running(self) -> bool:
        """Whether the services have the port."""
        return is_open(self.machine.services)

    @property
    def is_stopped(self) -> bool:
        """Whether it is installed and stopped: what its services leave behind then is no fault."""
        return self.credentials is not None and are_stopped(self.machine.services)


def look_at_machine() -> Machine:
    """The facts of this machine, now."""
    memory = _meminfo()
    own_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own_locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    server = unit_properties("appliance-server.service", "LimitNOFILE")
    engine = unit_properties("appliance-engine@0.service", *ENGINE_PROPERTIES)
    total = memory["MemTotal"] * KIB
    return Machine(
        now_s=time.time(),
        memory_total_bytes=total,
        huge_pages_bytes=memory.get("HugePages_Total", 0) * memory.get("Hugepagesize", 0) * KIB,
        gpu_nodes=tuple(sorted(Path("/dev").glob("nvidia*"))),
        open_files_max=_limit(server.get("LimitNOFILE"), own_files),
        locked_bytes_max=_limit(engine.get("LimitMEMLOCK"), own_locked),
        engine_bytes_max=min(total, _limit(engine.get("MemoryMax"), total)),
        engine_writes=_writable(engine),
        services=services(),
    )


def _writable(unit: Mapping[str, str]) -> tuple[Path, ...] | None:
    """Where a unit may write, systemd.exec(5) `ProtectSystem=strict`."""
    if unit.get("ProtectSystem") != "strict":
        return None
    paths = [word.lstrip("-+") for word in unit.get("ReadWritePaths", "").split()]
    for name, base in (("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache")):
        paths += [f"{base}/{word}" for word in unit.get(name, "").split()]
    return tuple(map(Path, paths))


def _limit(text: str | None, own: int) -> int:
    """A unit's limit, or this process's own where there is no unit; an unlimited one is the largest."""
    if text is None:
        return own
    return int(text) if text.isdecimal() else 2**63


def _meminfo() -> dict[str, int]:
    """/proc/meminfo, proc_meminfo(5): kB, or a plain number for HugePages_Total."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(rest.split()[0]) for name, rest in pairs}
