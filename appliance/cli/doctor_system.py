"""Faults of the machine under an appliance: user, clock, disk, memory, limits, GPU, services.

Pure, but for the free space of a disk and the times of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import appliance
from appliance.cli.doctor_subject import Fault, Installed, Subject
from appliance.cli.plain_text import size
from appliance.cli.service_states import TARGET, ServiceState
from appliance.cli.system_files import GPU_CONTROL
from appliance.config import GIB, Config, engine_configs
from appliance.file_access import READ, WRITE, stopped_at, told

DISK_FREE_BYTES_MIN = GIB
"""Less, and PostgreSQL may soon take no write."""

CLOCK_SLACK_S = 3600.0
SERVER_FILES = 128
"""Descriptors of the server that are no stream's: logs, sockets, the database, modules."""


def user_faults(subject: Subject) -> Iterator[Fault]:
    """The services' user has a home it can use, or libraries write to `/` and fail there."""
    home = subject.home
    if home is None or not home.is_dir():
        yield Fault(
            name="home-missing",
            what=f"the home of {subject.who.name} ({home or 'not set'}) is no folder",
            mend="systemd-tmpfiles --create appliance.conf, or usermod -d "
            f"{subject.config.paths.data_dir} {subject.who.name}",
        )


def clock_faults(subject: Subject) -> Iterator[Fault]:
    """A clock that runs behind what was already written: keys of journals and backups are times."""
    now = subject.machine.now_s
    for path in (Path(appliance.__file__), subject.config_path, subject.config.paths.data_dir):
        written = path.stat().st_mtime if path.exists() else now
        if written > now + CLOCK_SLACK_S:
            yield Fault(
                name="clock-behind",
                what=f"the clock is {(written - now) / 3600:.0f} hours behind the last change of {path}",
                mend="timedatectl set-ntp true (and look at timedatectl status)",
            )
            return


def disk_faults(subject: Subject) -> Iterator[Fault]:
    """Room for chats, and for the disk tier on top of what it has already."""
    folder = subject.config.paths.data_dir
    if not folder.is_dir():
        return
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        yield Fault(
            name="disk-read-only",
            what=f"{folder} is on a file system that takes no writes",
            mend=f"mount -o remount,rw $(findmnt -n -o TARGET --target {folder}); see dmesg for why",
        )
        return
    free = disk.f_bavail * disk.f_frsize
    own = engine_configs(subject.config)
    wanted = sum(engine.engine.disk_cache_bytes for engine in own)
    held = sum(_size(engine.paths.kv_slots) for engine in own)
    if free < DISK_FREE_BYTES_MIN:
        yield Fault(
            name="disk-full",
            what=f"{folder}: {size(free)} free, and {size(DISK_FREE_BYTES_MIN)} is little already",
            mend=f"du -xhd2 {folder} | sort -h | tail; free some, or lower engine.disk_cache_bytes",
        )
    elif wanted - held > free - DISK_FREE_BYTES_MIN:
        yield Fault(
            name="disk-cache-too-large",
            what=f"engine.disk_cache_bytes: {size(wanted)} are to be on a disk with {size(free)} free",
            mend=f"lower engine.disk_cache_bytes in {subject.config_path}",
        )


def memory_faults(subject: Subject) -> Iterator[Fault]:
    """Caches that do not fit into memory, by themselves or because huge pages are set aside."""
    machine = subject.machine
    own = engine_configs(subject.config)
    wanted = sum(_memory(engine, subject) for engine in own)
    largest = max(_memory(engine, subject) for engine in own)
    if wanted <= machine.memory_total_bytes and largest > machine.engine_bytes_max:
        yield Fault(
            name="memory-short",
            what=f"engine.kv_cache_bytes and host_cache_bytes ask for {size(largest)}, and an engine's "
            f"service may have {size(machine.engine_bytes_max)} (MemoryMax=)",
            mend=f"lower engine.kv_cache_bytes in {subject.config_path}",
        )
    elif wanted > machine.memory_total_bytes:
        yield Fault(
            name="memory-short",
            what=f"engine.kv_cache_bytes and host_cache_bytes ask for {size(wanted)}, "
            f"this machine has {size(machine.memory_total_bytes)}",
            mend=f"lower engine.kv_cache_bytes in {subject.config_path}",
        )
    elif wanted > machine.memory_total_bytes - machine.huge_pages_bytes:
        yield Fault(
            name="huge-pages-hold-memory",
            what=f"{size(machine.huge_pages_bytes)} are set aside as huge pages, which no cache uses: "
            f"{size(wanted)} do not fit beside them",
            mend="sysctl vm.nr_hugepages=0 (and in /etc/sysctl.d)",
        )


def limit_faults(subject: Subject) -> Iterator[Fault]:
    """Limits of the service manager below what the settings allow."""
    machine, server = subject.machine, subject.config.server
    needed = server.streams_max + subject.config.database.pool_max + SERVER_FILES
    if machine.open_files_max < needed:
        yield Fault(
            name="open-files-low",
            what=f"server.streams_max {server.streams_max} needs {needed} open files, the limit is "
            f"{machine.open_files_max}",
            mend="systemctl edit appliance-server.service: [Service] LimitNOFILE=65536",
        )
    host_cache = subject.config.engine.host_cache_bytes
    if machine.gpu_nodes and host_cache > machine.locked_bytes_max:
        yield Fault(
            name="locked-memory-low",
            what=f"engine.host_cache_bytes: {size(host_cache)} are to be locked, the limit is "
            f"{size(machine.locked_bytes_max)}",
            mend="systemctl edit appliance-engine@.service: [Service] LimitMEMLOCK=infinity",
        )


def gpu_faults(subject: Subject) -> Iterator[Fault]:
    """A GPU that is asked for: its driver is there, and the service may open its nodes."""
    asked = [own.engine.device for own in engine_configs(subject.config)]
    if not any(device.startswith("cuda") for device in asked):
        return
    nodes = subject.machine.gpu_nodes
    if GPU_CONTROL not in nodes:
        yield Fault(
            name="driver-missing",
            what=f"engine.device asks for {', '.join(asked)}, and there is no {GPU_CONTROL}",
            mend='nvidia-smi (install the driver where it fails), or set engine.device = "cpu"',
        )
        return
    gpus = sum(node.name.removeprefix("nvidia").isdecimal() for node in nodes)
    for device in asked:
        number = int(device.partition(":")[2] or 0)
        if device.startswith("cuda") and number >= gpus:
            yield Fault(
                name="gpu-missing",
                what=f"engine.device asks for {device}, and this machine has {gpus} GPUs, from 0 on",
                mend=f"nvidia-smi -L shows them; edit engine.device in {subject.config_path}",
            )
            return
    for node in nodes:
        stopped = stopped_at(node, subject.who, READ | WRITE) if node.is_char_device() else None
        if stopped is not None:
            yield Fault(
                name="gpu-not-accessible",
                what=told(node, stopped, subject.who),
                mend="systemctl edit appliance-engine@.service: [Service] SupplementaryGroups="
                f"{node.group()}",
            )
            return


def service_faults(subject: Subject) -> Iterator[Fault]:
    """Services that failed, or end again and again; of a stopped appliance that alone."""
    yield from faults_of_services(subject.machine.services, is_stopped=subject.is_stopped)


def faults_of_services(states: Mapping[str, ServiceState], *, is_stopped: bool) -> Iterator[Fault]:
    """As `service_faults`, of what systemd says alone."""
    if is_stopped:
        yield Fault(
            name="stopped", what="the appliance is stopped", mend=f"systemctl start {TARGET}"
        )
        return
    for unit, state in sorted(states.items()):
        look = f"journalctl -b -u {unit} -n 20, then systemctl restart {unit}"
        if state.active == "failed":
            yield Fault(name="service-failed", what=f"{unit} has failed", mend=look)
        elif state.restarting is not None:
            # `reset-failed` begins the count anew, which a stop between two tries does not.
            mend = f"{look}, and systemctl reset-failed {unit}"
            yield Fault(name="service-restarting", what=f"{unit} {state.restarting}", mend=mend)


def installation_faults(subject: Subject) -> Iterator[Fault]:
    """What is installed is not this program, not reachable, or not as it was installed."""
    yield from faults_of_installation(subject.installed)


def faults_of_installation(installed: Installed) -> Iterator[Fault]:
    """As `installation_faults`, of what was found alone."""
    if installed.unread is not None:
        yield Fault(name="not-looked-at", what=installed.unread, mend="sudo appliance doctor")
    if installed.other is not None:
        yield Fault(
            name="other-version",
            what=installed.other,
            mend="/opt/appliance/current/bin/appliance doctor looks at what is installed",
        )
    if installed.unreachable is not None:
        yield Fault(
            name="program-not-reachable",
            what=installed.unreachable,
            mend="install the program into /opt/appliance, and run `appliance system install` from there",
        )
    if installed.refused is not None:
        yield Fault(
            name="not-installable",
            what=installed.refused,
            mend="mend what is named, then appliance system install --execute",
        )
    if installed.differing:
        yield Fault(
            name="units-differ",
            what=f"{len(installed.differing)} installed files differ from what the settings ask for: "
            f"{installed.differing[0]}",
            mend="appliance system install --execute, then systemctl restart appliance.target",
        )


def _memory(engine: Config, subject: Subject) -> int:
    """Bytes of this machine's memory that one engine's caches take."""
    settings = engine.engine
    on_gpu = _may_use_gpu(settings.device, subject)
    return settings.host_cache_bytes + (0 if on_gpu else settings.kv_cache_bytes)


def _may_use_gpu(device: str, subject: Subject) -> bool:
    return device != "cpu" and GPU_CONTROL in subject.machine.gpu_nodes


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
