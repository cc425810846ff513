"""A real systemd as process 1 of a container, within seconds, on a root folder made for it.

The root has this machine's `/usr`, read-only, an `/etc` of a few files, and the program under test
where an installation would have it. systemd-nspawn(1) boots it with a network, processes and cgroups of
its own; nothing of this machine is written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
RELEASE = Path("/opt/appliance/release")
PYTHON = Path("/opt/python")
LIFE_S = 600
BOOT_S = 60.0
STOP_S = 20.0
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("systemd-nspawn", "nsenter", "unshare", "timeout", "mount")
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "root", "home", "usr", "var/log", "srv/models")
MERGED = ("bin", "sbin", "lib", "lib64")
FROM_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "os-release")

MASKED = (
    "systemd-logind.service",
    "dbus.service",
    "dbus.socket",
    "console-getty.service",
    "getty.target",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
)
CGROUPS = Path("/sys/fs/cgroup")
_CLONE_NEWNET = 0x40000000
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 0x4206, 0x4207, 0x40000000

LAUNCHER = f"""#!{RELEASE}/bin/python
import sys
sys.path.insert(0, "{RELEASE}/tree")
from appliance.cli.main import main
sys.exit(main())
"""


def why_not() -> str | None:
    """What this machine lacks to boot a box; None when it can be tried."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: apt-get install systemd-container)"
    if not all(Path("/", name).is_symlink() for name in MERGED if Path("/", name).exists()):
        return "/bin is not in /usr here"
    return None


def make_root(root: Path) -> None:
    """An operating system's folder: everything but what is mounted into it."""
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    for name in MERGED:
        (root / name).symlink_to(f"usr/{name}")
    etc = root / "etc"
    (etc / "systemd/system").mkdir(parents=True)
    for name in FROM_ETC:
        if Path("/etc", name).exists():
            shutil.copyfile(Path("/etc", name), etc / name)
    if Path("/etc/ld.so.conf.d").is_dir():
        shutil.copytree("/etc/ld.so.conf.d", etc / "ld.so.conf.d")
    # A Python built with a shared library knows it by the path it was built for, closed to services.
    libraries = etc / "ld.so.conf"
    libraries.write_text(f"{PYTHON}/lib\n{libraries.read_text() if libraries.exists() else ''}")
    (etc / "machine-id").write_text("5bc3a1d3c1b94e2f8f2d0a7b6c5d4e3f\n")
    (etc / "hostname").write_text("box\n")
    (etc / "fstab").touch()
    units = etc / "systemd/system"
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    _make_release(root / RELEASE.relative_to("/"))


def _make_release(release: Path) -> None:
    """The program as an environment of its own: this checkout's code, this environment's packages."""
    (release / "bin").mkdir(parents=True)
    (release / _packages()).mkdir(parents=True)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (release / "pyvenv.cfg").write_text(
        f"home = {PYTHON}/bin\ninclude-system-site-packages = false\n"
    )
    (release / "bin/python").symlink_to(PYTHON / "bin" / python)
    (release / "bin/appliance").write_text(LAUNCHER)
    (release / "bin/appliance").chmod(0o755)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("appliance", "prompts", "systemd"):
        shutil.copytree(ROOT / name, release / "tree" / name, ignore=ignored)
    (release / "tree/docs").mkdir()
    shutil.copyfile(ROOT / "docs/settings.md", release / "tree/docs/settings.md")


def _packages() -> str:
    return f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


class Box:
    """One booted system. Use `booted`."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], leader: int) -> None:
        self.root = root
        self.leader = leader
        self._process = process

    def run(
        self, *words: str, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """A command in the box, as root."""
        enter = ("nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w")
        ended = subprocess.run(
            (*enter, "--", "env", "-i", f"PATH={PATH}", "LANG=C.UTF-8", *words),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and ended.returncode != 0:
            raise AssertionError(
                f"{' '.join(words)}: {ended.stdout}{ended.stderr}\n{self.journal()}"
            )
        return ended

    def show(self, unit: str, name: str) -> str:
        """A property of a unit that is loaded."""
        said = self.run("systemctl", "show", unit, f"--property=LoadState,{name}").stdout
        values = dict(line.split("=", 1) for line in said.splitlines())
        assert values["LoadState"] == "loaded", said
        return values[name]

    def journal(self, *words: str) -> str:
        """The box's journal of this boot."""
        return self.run("journalctl", "-b", "--no-pager", "-o", "cat", *words, check=False).stdout

    def main_pid(self, unit: str) -> int:
        """A service's main process, by its number on this machine."""
        inside = int(self.show(unit, "MainPID"))
        assert inside > 0, f"{unit} has no process"
        for process in psutil.Process(self.leader).children(recursive=True):
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == inside:
                return process.pid
        raise AssertionError(f"no process {inside} of {unit}")

    def in_network(self, work: Callable[[], T]) -> T:
        """What `work` gives, run in a thread whose sockets are the box's."""
        results: list[T] = []
        failures: list[BaseException] = []

        def enter() -> None:
            try:
                with open(f"/proc/{self.leader}/ns/net", "rb") as namespace:
                    libc = ctypes.CDLL(None, use_errno=True)
                    assert libc.setns(namespace.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()
                results.append(work())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return results[0]

    @contextlib.contextmanager
    def frozen(self, unit: str) -> Iterator[int]:
        """The main thread of a service stands still, others go on: a loop that hangs. Gives its process.

        It is held under ptrace(2) until its process is killed.
        """
        pid = self.main_pid(unit)
        held = threading.Event()
        failures: list[int] = []

        def hold() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
                if libc.ptrace(request, pid, None, None) != 0:
                    failures.append(ctypes.get_errno())
            held.set()
            # The tracer reaps it, or its real parent would never hear of its end.
            with contextlib.suppress(ChildProcessError):
                while True:
                    _, status = os.waitpid(pid, _WALL)
                    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                        return

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        held.wait()
        assert not failures, failures
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            thread.join(STOP_S)

    def power_off(self) -> None:
        """End it: an orderly poweroff, else by force."""
        self.run("systemctl", "poweroff", check=False, timeout_s=STOP_S)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.power_cut()

    def power_cut(self) -> None:
        """Kill process 1, and with it everything in the box."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.leader, signal.SIGKILL)
        self._process.wait(STOP_S)


@contextlib.contextmanager
def booted(folder: Path, root: Path) -> Iterator[Box]:
    """A running system on `root` (`make_root`); `folder` is for its log."""
    name = f"appliance-test-{os.getpid()}"
    groups = _make_cgroups(name)
    log = folder / "console.log"
    python = Path(sys.base_prefix)
    mounts = [
        _mount(Path("/usr"), root / "usr"),
        # An installation puts a link there.
        f"mount -t tmpfs -o mode=755 local {root}/usr/local && mkdir {root}/usr/local/bin",
        _mount(python, root / PYTHON.relative_to("/")),
        _mount(Path(sysconfig.get_path("purelib")), root / RELEASE.relative_to("/") / _packages()),
    ]
    (root / PYTHON.relative_to("/")).mkdir(parents=True, exist_ok=True)
    script = [f"echo $$ > {group}/cgroup.procs" for group in groups]
    nspawn = (
        f"systemd-nspawn --quiet -D {root} -b -M {name} --register=no --keep-unit --private-network "
        "--link-journal=no --console=pipe"
    )
    script.append(
        f"exec timeout -k 5 {LIFE_S} unshare -m --propagation private "
        f"sh -c '{' && '.join(mounts)} && exec {nspawn}'"
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-e", "-c", "\n".join(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    box = None
    try:
        box = _wait_booted(root, process, log)
        box.run("ldconfig")
        yield box
    finally:
        if box is not None and process.poll() is None:
            box.power_off()
        _end(process, groups)


def _mount(source: Path, target: Path) -> str:
    return f"mount --bind {source} {target} && mount -o remount,bind,ro {target}"


def _make_cgroups(name: str) -> list[Path]:
    """Cgroups below this process's own, one in each hierarchy that systemd-nspawn uses."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        hierarchy = {"name=systemd": "systemd", "": "unified"}.get(controllers)
        if controllers == "" and not (CGROUPS / "unified").is_dir():
            hierarchy = "."  # cgroup2 alone
        if hierarchy is not None and (CGROUPS / hierarchy).is_dir():
            group = CGROUPS / hierarchy / path.lstrip("/") / name
            group.mkdir(exist_ok=True)
            groups.append(group)
    return groups


def _wait_booted(root: Path, process: subprocess.Popen[bytes], log: Path) -> Box:
    deadline = time.monotonic() + BOOT_S
    box = None
    while time.monotonic() < deadline and process.poll() is None:
        if box is None:
            leader = _leader(process.pid)
            box = None if leader is None else Box(root, process, leader)
        if box is not None:
            state = box.run("systemctl", "is-system-running", check=False).stdout.strip()
            if state in ("running", "degraded"):
                return box
        time.sleep(0.1)
    raise RuntimeError(f"the box did not boot: {log.read_text(errors='replace')[-2000:]}")


def _leader(pid: int) -> int | None:
    """Process 1 of the box: the first `systemd` below systemd-nspawn."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            if child.name() == "systemd":
                return child.pid
    return None


def _end(process: subprocess.Popen[bytes], groups: list[Path]) -> None:
    """Whatever became of it: nothing of the box runs on, and its cgroups are gone."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    for group in groups:
        for file in group.rglob("cgroup.procs"):
            for number in file.read_text(encoding="ascii").split():
                if (
                    number == "0"
                ):  # One that this namespace cannot name, and kill(0) is our own group.
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
    time.sleep(0.1)
    for group in groups:
        for inner in sorted(group.rglob("*"), reverse=True):
            if inner.is_dir():
                with contextlib.suppress(OSError):
                    inner.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
