"""Run in a service's sandbox: tries what each hardening directive forbids, and prints what came of it.

One JSON object: by name, `ok` or the errno's name, or a value. Only the standard library; never part of
the product.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PTRACE_TRACEME = 0
ADDR_COMPAT_LAYOUT = 0x0200000


def called(name: str, *arguments: object) -> str:
    """A C function: `ok`, or its errno."""
    ctypes.set_errno(0)
    result = getattr(LIBC, name)(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "ok"


def tried(work: Callable[[], object]) -> str:
    """`ok`, or the errno of its OSError."""
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def written(path: str) -> str:
    """A new file there."""

    def write() -> None:
        Path(path).write_text("x", encoding="ascii")
        os.unlink(path)

    return tried(write)


def read(path: str) -> str:
    """A folder's names, or a file's bytes."""
    there = Path(path)
    return tried(lambda: list(there.iterdir()) if there.is_dir() else there.read_bytes())


def read_only(path: str) -> str:
    """Whether what is mounted there takes no writes."""
    if not Path(path).exists():
        return "absent"
    return "read-only" if os.statvfs(path).f_flag & os.ST_RDONLY else "writable"


def status(name: str) -> str:
    """A line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name + ":"))


def threads_max() -> int:
    """How many threads beside the first there may be, 600 at most."""
    ending = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(600):
            thread = threading.Thread(target=ending.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass
    ending.set()
    for thread in started:
        thread.join()
    return len(started)


def memory_max() -> int | None:
    """The limit of this process's cgroup in bytes; None where the kernel shows none here.

    /proc/self/cgroup may tell a path from above the box, whose own tree is mounted.
    """
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        tree = Path("/sys/fs/cgroup", controllers)
        parts = path.strip("/").split("/")
        for start in range(len(parts)):
            for name in ("memory.max", "memory.limit_in_bytes"):
                file = tree.joinpath(*parts[start:], name)
                if file.is_file():
                    text = file.read_text(encoding="ascii").strip()
                    return int(text) if text.isdecimal() else None
    return None


def write_and_execute() -> str:
    """Memory that may be both."""
    wanted = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    return tried(lambda: mmap.mmap(-1, 4096, prot=wanted).close())


def new_file(folder: str) -> dict[str, str]:
    """What a new file gets, and may be made."""
    path = Path(folder, "probe")
    path.touch()
    mode = oct(path.stat().st_mode & 0o777)
    setuid = tried(lambda: path.chmod(0o4700))
    owner = tried(lambda: os.chown(path, os.getuid(), os.getgid()))
    path.unlink()
    return {"mode": mode, "setuid": setuid, "chown": owner}


def family(number: int) -> str:
    """A socket of an address family."""
    return tried(lambda: socket.socket(number, socket.SOCK_DGRAM).close())


def run() -> dict[str, object]:
    """Every probe."""
    state = "/var/lib/appliance"
    file = new_file(state)
    return {
        "User": os.getuid() != 0 and os.geteuid() != 0,
        "NoNewPrivileges": status("NoNewPrivs"),
        "CapabilityBoundingSet": int(status("CapBnd"), 16),
        "AmbientCapabilities": int(status("CapAmb"), 16),
        "effective": int(status("CapEff"), 16),
        "LimitCORE": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "UMask": file["mode"],
        "RestrictSUIDSGID": file["setuid"],
        "chown": file["chown"],
        "LockPersonality": called("personality", ADDR_COMPAT_LAYOUT),
        "PrivateTmp": [read("/tmp/of-the-box"), written("/tmp/probe")],
        "PrivateUsers": Path("/proc/self/uid_map").read_text().split()[2] != "4294967295",
        "PrivateIPC": os.readlink("/proc/self/ns/ipc"),
        "PrivateNetwork": os.readlink("/proc/self/ns/net"),
        "ProtectSystem": sorted(
            {written(f"{folder}/probe") for folder in ("/etc", "/usr", "/opt/appliance", "/srv")}
        ),
        "ReadOnlyPaths": written("/run/probe"),
        "state": written(f"{state}/probe"),
        "sockets": written("/run/appliance/probe"),
        "secrets": read("/etc/appliance/credentials"),
        "credentials": read(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere")),
        "ProtectHome": sorted({read("/home/ann"), read("/root/of-the-box")}),
        "ProtectClock": called("clock_settime", 0, ctypes.create_string_buffer(16)),
        "ProtectControlGroups": written("/sys/fs/cgroup/probe"),
        "ProtectHostname": called("sethostname", b"probe", 5),
        "ProtectKernelLogs": called("klogctl", 3, ctypes.create_string_buffer(64), 64),
        "ProtectKernelModules": called("syscall", 175, None, 0, b""),
        "ProtectKernelTunables": [read_only("/proc/sys"), read_only("/sys")],
        "ProtectProc": os.path.exists("/proc/1"),
        "ProcSubset": os.path.exists("/proc/meminfo"),
        "RestrictNamespaces": [called("unshare", CLONE_NEWUSER), called("unshare", CLONE_NEWNS)],
        "RestrictRealtime": tried(
            lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        ),
        "RestrictAddressFamilies": [
            family(number)
            for number in (
                socket.AF_UNIX,
                socket.AF_INET,
                socket.AF_INET6,
                socket.AF_NETLINK,
                socket.AF_PACKET,
            )
        ],
        "MemoryDenyWriteExecute": write_and_execute(),
        "PrivateDevices": sorted(os.listdir("/dev")),
        "SystemCallFilter": {
            "ptrace": called("ptrace", PTRACE_TRACEME, 0, None, None),
            "mount": called("mount", b"x", b"/tmp", b"tmpfs", 0, None),
            "nice": tried(lambda: os.setpriority(os.PRIO_PROCESS, 0, 5)),
            "userfaultfd": called("syscall", 323, 0),
        },
        "TasksMax": threads_max(),
        "MemoryMax": memory_max(),
    }


if __name__ == "__main__":
    print("PROBED " + json.dumps(run()))
