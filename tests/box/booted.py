"""A real systemd as process 1 of a container, within seconds, on a root folder made for it.

systemd-nspawn(1) boots what `system_folder.py` makes, with a network, processes and cgroups of its own;
nothing of this machine is written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from tests.box.system_folder import mounts

T = TypeVar("T")

LIFE_S = 600
BOOT_S = 180.0
STOP_S = 20.0
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory", "pids")
"""Of cgroup v1: a container sees them read-only, and limits would silently not hold."""

_CLONE_NEWNET = 0x40000000
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 0x4206, 0x4207, 0x40000000


class Box:
    """One system, booted more than once if wanted. Use `booted`."""

    def __init__(self, folder: Path, root: Path) -> None:
        """`root`: what it boots from; `folder`: for its console's log."""
        self.root = root
        self._folder = folder
        self._name = f"appliance-test-{os.getpid()}"
        self._groups: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.leader = 0
        self.limits_hold = False

    def boot(self) -> None:
        """Start it and wait until it is up. Raises RuntimeError with the console's end."""
        assert self._process is None
        self._groups = _make_cgroups(self._name)
        log = self._folder / "console.log"
        script = [f"echo $$ > {group}/cgroup.procs" for group in self._groups]
        nspawn = (
            f"systemd-nspawn --quiet -D {self.root} -b -M {self._name} --register=no --keep-unit "
            "--private-network --link-journal=no --console=pipe"
        )
        script.append(
            f"exec timeout -k 5 {LIFE_S} unshare -m --propagation private "
            f"sh -c '{' && '.join(mounts(self.root))} && exec {nspawn}'"
        )
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-e", "-c", "\n".join(script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            leader = _leader(self._process.pid)
            if leader is not None:
                self.leader = leader
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
                if state in ("running", "degraded"):
                    self.limits_hold = self._give_limits()
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the box did not boot: {log.read_text(errors='replace')[-2000:]}")

    def _give_limits(self) -> bool:
        """Let its systemd limit memory and tasks, where that takes writable controllers."""
        if (CGROUPS / "cgroup.controllers").exists():
            return False
        for name in LIMITS:
            words = ("mount", "-o", "remount,bind,rw", f"/sys/fs/cgroup/{name}")
            if self.run(*words, check=False).returncode != 0:
                return False
        # Process 1 looks for writable controllers when it starts only.
        self.run("systemctl", "daemon-reexec")
        return True

    def power_off(self) -> None:
        """An orderly poweroff, else by force; nothing of it runs on, and its cgroups are gone."""
        process = self._process
        if process is None:
            return
        if process.poll() is None and self.leader:
            self.run("systemctl", "poweroff", check=False, timeout_s=STOP_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * STOP_S)
        self._end(process)

    def power_cut(self) -> None:
        """Kill process 1, and with it everything in the box."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.leader, signal.SIGKILL)
        self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        _remove_cgroups(self._groups)
        self._process, self.leader = None, 0

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
        """The box's journal of this boot, with all that was said by now."""
        self.run("journalctl", "--sync")
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


@contextlib.contextmanager
def booted(folder: Path, root: Path) -> Iterator[Box]:
    """A running system on `root` (`make_root`); `folder` is for its log."""
    box = Box(folder, root)
    try:
        box.boot()
        yield box
    finally:
        box.power_off()


def _make_cgroups(name: str) -> list[Path]:
    """Cgroups below this process's own, one in each hierarchy that systemd-nspawn uses."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        names = {"name=systemd": "systemd", "": "unified", **{name: name for name in LIMITS}}
        hierarchy = names.get(controllers)
        if controllers == "" and not (CGROUPS / "unified").is_dir():
            hierarchy = "."  # cgroup2 alone
        if hierarchy is not None and (CGROUPS / hierarchy).is_dir():
            group = CGROUPS / hierarchy / path.lstrip("/") / name
            group.mkdir(exist_ok=True)
            groups.append(group)
    return groups


def _leader(pid: int) -> int | None:
    """Process 1 of the box: the first `systemd` below systemd-nspawn."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            if child.name() == "systemd":
                return child.pid
    return None


def _remove_cgroups(groups: list[Path]) -> None:
    """Kill what is left in them, and remove them."""
    for group in groups:
        for file in group.rglob("cgroup.procs"):
            for number in file.read_text(encoding="ascii").split():
                if number == "0":  # One that this namespace cannot name; kill(0) is our own group.
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
