"""Which files an installed appliance consists of, as data. Pure; writes nothing and asks nobody.

Units, users and folders are the files of `systemd/`; what depends on the configuration (address, network,
GPUs, how many engines) is in drop-ins and links beside them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from appliance.cli.installed import CONFIG
from appliance.config import Config, ServerConfig, engine_configs
from appliance.database_url import hosts_of
from appliance.errors import ConfigError
from appliance.server.auth import loopback_address

USER = "appliance"
UNITS = Path("/etc/systemd/system")
STATE = Path("/var/lib/appliance")
CACHE = Path("/var/cache/appliance")
RUN = Path("/run/appliance")
BACKUPS = Path("/var/backups/appliance")
PROGRAM = Path("/opt/appliance/current")
PREVIOUS = Path("/opt/appliance/previous")
"""The version that the last upgrade replaced."""

COMMAND = Path("/usr/local/bin/appliance")

SERVER_UNIT = "appliance-server.service"
ENGINE_TEMPLATE = "appliance-engine@.service"
POSTGRES_UNIT = "appliance-postgres.service"
DB_STATUS = "appliance-db-status"
_BACKUP = "appliance-db-backup"
DROP_IN_HEAD = "# Written by `appliance system install`"
"""How a drop-in begins that depends on the configuration; others are the operator's own."""

_WANTED_BY = re.compile(r"^WantedBy=(\S+)$", re.MULTILINE)
UNIT_HEAD = (
    "# Installed by `appliance system install` as {name}: changes belong into `systemctl edit`."
)
"""How a unit begins; a copy of it under another name is the operator's own."""


class Owner(Enum):
    """Who a file belongs to: root, or root and the appliance's group, which may read it."""

    ROOT = "root:root"
    GROUP = f"root:{USER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that is to be there. `is_kept`: written once, then the operator's own."""

    path: Path
    text: str
    mode: int = 0o644
    owner: Owner = Owner.ROOT
    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link that is to be there."""

    path: Path
    target: Path


Wanted = File | Link


def account_files(sources: Mapping[str, str]) -> tuple[Wanted, ...]:
    """What says which user and folders there are; `sources`: the text of systemd/ by relative name."""
    return tuple(
        File(path=Path("/etc") / name, text=text)
        for name, text in sorted(sources.items())
        if name.startswith(("sysusers.d/", "tmpfiles.d/"))
    )


def program_files(prefix: Path, config_toml: str) -> tuple[Wanted, ...]:
    """The configuration, and where the installed program in `prefix` (its environment) is found."""
    return (
        File(path=CONFIG, text=config_toml, mode=0o640, owner=Owner.GROUP, is_kept=True),
        Link(path=PROGRAM, target=prefix),
        Link(path=COMMAND, target=PROGRAM / "bin" / "appliance"),
    )


def unit_files(sources: Mapping[str, str], config: Config, *, has_gpu: bool) -> tuple[Wanted, ...]:
    """The units, what the configuration makes of them, and which of them start with the box."""
    left_out = _left_out(config)
    units = {
        name: text
        for name, text in sorted(sources.items())
        if "/" not in name and name.partition(".")[0] not in left_out
    }
    files = [unit_file(name, text) for name, text in units.items()]
    files.append(_listen(config.server))
    files += [_network(name) for name in _networked(config) if f"appliance-{name}.service" in units]
    if has_gpu and any(own.engine.device != "cpu" for own in engine_configs(config)):
        files.append(_gpu())
    return (*files, *_started(units, config))


def unit_file(name: str, text: str) -> File:
    """A unit as it is installed."""
    return File(path=UNITS / name, text=f"{UNIT_HEAD.format(name=name)}\n{text}")


def engine_units(config: Config) -> list[str]:
    """The service of each engine."""
    return [f"appliance-engine@{number}.service" for number in range(len(engine_configs(config)))]


def _left_out(config: Config) -> set[str]:
    """What the settings have no place for, by the names of the units without their kinds."""
    if config.database.url is None:
        return set()
    left_out = {POSTGRES_UNIT.removesuffix(".service"), _BACKUP}
    # An operator's look needs a session of the server's own, to which no pooler by transaction leads.
    return left_out | {DB_STATUS} if config.database.pooling == "transaction" else left_out


def _started(units: Mapping[str, str], config: Config) -> list[Link]:
    """What `systemctl enable` would link: each unit says itself what wants it (systemd.unit(5))."""
    links = []
    for name, text in units.items():
        for target in _WANTED_BY.findall(text):
            started = engine_units(config) if name == ENGINE_TEMPLATE else [name]
            wants = UNITS / f"{target}.wants"
            links += [Link(path=wants / unit, target=UNITS / name) for unit in started]
    return links


def listen_address(server: ServerConfig) -> str:
    """Where a socket unit listens, systemd.socket(5): an address, and no name. Raises ConfigError."""
    if server.port == 0:
        raise ConfigError("server.port: 0 is any free port; a service has to have one of its own")
    try:
        address = ipaddress.ip_address(loopback_address(server.host) or server.host.strip("[]"))
    except ValueError as error:
        raise ConfigError(
            f"server.host: {server.host!r} is a name, and a service listens at an address "
            "(`ip address` shows this machine's; 0.0.0.0 and :: are all of them)"
        ) from error
    return f"[{address}]:{server.port}" if address.version == 6 else f"{address}:{server.port}"


def _listen(server: ServerConfig) -> File:
    lines = ["[Socket]", "ListenStream=", f"ListenStream={listen_address(server)}"]
    if loopback_address(server.host) is None:
        # Keys are required there (server.api_keys); who else may connect is a firewall's business.
        lines += ["FreeBind=yes", "IPAddressDeny=", "IPAddressAllow="]
    return _drop_in("appliance-server.socket", "listen", "server.host and server.port", lines)


def _networked(config: Config) -> Iterable[str]:
    """The services that have to reach another machine, or a collector on this one."""
    names: list[str] = []
    if config.database.url is not None and not _is_unix(config.database.url):
        names += ["server", "db-status", "experiment-check"]
    if config.traces.endpoint is not None:
        names += ["server", "engine@"]
    return dict.fromkeys(names)


def _network(name: str) -> File:
    lines = [
        "[Service]",
        "PrivateNetwork=no",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
        "IPAddressDeny=",
    ]
    return _drop_in(f"appliance-{name}.service", "network", "database.url, traces.endpoint", lines)


def _gpu() -> File:
    lines = [
        "[Service]",
        "PrivateDevices=no",
        *(f"DeviceAllow={node} rw" for node in GPU_NODES),
        "LimitMEMLOCK=infinity",
    ]
    return _drop_in(ENGINE_TEMPLATE, "gpu", "a GPU", lines)


GPU_CONTROL = Path("/dev/nvidiactl")
"""Is there where a GPU's driver is."""

GPU_NODES = ("char-nvidia", "char-nvidia-frontend", "char-nvidia-uvm", "char-nvidia-caps")
"""The driver's names in /proc/devices; which there are depends on its version."""


def _drop_in(unit: str, name: str, cause: str, lines: list[str]) -> File:
    head = f"{DROP_IN_HEAD} for {cause}; changes here are lost."
    return File(path=UNITS / f"{unit}.d" / f"{name}.conf", text="\n".join([head, *lines]) + "\n")


def _is_unix(url: str) -> bool:
    """Whether a database's address is a unix socket: no host, or one that is a folder."""
    return all(host.startswith("/") for host in hosts_of(urlsplit(url)))
