"""What a process says to the service manager that started it, and the sockets it is handed.

The protocol is sd_notify(3): datagrams of `NAME=value` lines to the unix socket in `NOTIFY_SOCKET`; the
watchdog's interval comes in `WATCHDOG_USEC` (sd_watchdog_enabled(3)), listening sockets as file
descriptors from 3 on (sd_listen_fds(3)). Never: waits for an answer, or ends a process that the manager
does not hear: without a manager every call does nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

from appliance.errors import ConfigError

log = logging.getLogger("appliance.service_manager")

FIRST_LISTEN_FD = 3
"""SD_LISTEN_FDS_START."""

FEEDS_PER_INTERVAL = 4
"""sd_watchdog_enabled(3) asks for two at least; a slow step or two may lie between these."""

EXTENSION_S = 30.0
"""How much longer a start may take from each moment on at which the process says that it works."""

EXTEND_EVERY_S = 3.0
LOAD_S_MAX = 3600.0
"""A load that takes longer than this is taken for one that hangs."""

STATUS_LETTERS_MAX = 256
_US = 1_000_000


class ServiceManager:
    """The manager of this process. Calls may come from any thread; none blocks."""

    def __init__(
        self,
        address: str | None,
        *,
        watchdog_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`address`: a path, or `@name` of the abstract namespace; None: nobody listens."""
        self._address = address
        self._watchdog_s = watchdog_s if address is not None else None
        self._clock = clock
        self._fed_at: float | None = None
        self._is_deaf = False

    @property
    def feed_every_s(self) -> float | None:
        """How often `alive` is to be called at least, in seconds; None without a watchdog."""
        return None if self._watchdog_s is None else self._watchdog_s / FEEDS_PER_INTERVAL

    def ready(self, status: str) -> None:
        """The process serves; its start is over, and the watchdog begins."""
        self._send("READY=1", _status(status))
        self._fed_at = None

    def starting(self, status: str) -> None:
        """The start goes on: it may take `EXTENSION_S` from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * _US:.0f}", _status(status))

    def stopping(self, status: str, *, within_s: float) -> None:
        """The orderly end has begun, and takes `within_s` at most, which takes the watchdog's place."""
        extension = f"EXTEND_TIMEOUT_USEC={within_s * _US:.0f}"
        self._send("STOPPING=1", extension, "WATCHDOG_USEC=0", _status(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(_status(text))

    def alive(self) -> None:
        """Feed the watchdog, if it is time; to be called by the loop that it watches, and nobody else."""
        every_s = self.feed_every_s
        if every_s is None:
            return
        now = self._clock()
        if self._fed_at is None or now - self._fed_at >= every_s:
            self._fed_at = now
            self._send("WATCHDOG=1")

    @contextmanager
    def working(self, status: str) -> Iterator[None]:
        """Say `starting` again and again while the body runs, for `LOAD_S_MAX` at most.

        A thread says it: reading and converting weights is a few long calls of foreign code.
        """
        if self._address is None:
            yield
            return
        ended = threading.Event()

        def extend() -> None:
            until = time.monotonic() + LOAD_S_MAX
            while time.monotonic() < until:
                self.starting(status)
                if ended.wait(EXTEND_EVERY_S):
                    return

        thread = threading.Thread(target=extend, name="service-manager", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _send(self, *lines: str) -> None:
        name = self._address
        if name is None:
            return
        # unix(7): the abstract namespace's names begin with a zero byte, shown as @.
        target = "\0" + name[1:] if name.startswith("@") else name
        try:
            # One of its own each time: a few a second at most, and nothing to be closed at the end.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
                speaking.setblocking(False)
                speaking.sendto("\n".join(lines).encode(), target)
        except OSError as error:
            # Told once: a full queue and a manager that is being replaced both pass.
            if not self._is_deaf:
                self._is_deaf = True
                log.warning("service_manager_deaf", extra={"cause": error.strerror})
        else:
            self._is_deaf = False


NO_MANAGER = ServiceManager(None)
"""Nobody listens."""


def service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """The manager named in `environment`, whose variables are taken out: children shall not speak for us.

    Raises ConfigError when an address or interval cannot be meant.
    """
    address = environment.pop("NOTIFY_SOCKET", None) or None
    interval = environment.pop("WATCHDOG_USEC", None)
    owner = environment.pop("WATCHDOG_PID", None)
    if address is not None and (address[0] not in "/@" or len(address) < 2):
        raise ConfigError(f"NOTIFY_SOCKET={address}: expected a path or @name")
    watchdog_s = None
    if interval is not None and (owner is None or owner == str(os.getpid())):
        microseconds = int(interval) if interval.isascii() and interval.isdecimal() else 0
        if microseconds <= 0:
            raise ConfigError(f"WATCHDOG_USEC={interval}: expected a number of microseconds")
        watchdog_s = microseconds / _US
    return ServiceManager(address, watchdog_s=watchdog_s)


def inherited_socket(environment: MutableMapping[str, str]) -> int | None:
    """The listening socket of a socket unit as a file descriptor; None when there is none for us.

    The variables are taken out of `environment`. Raises ConfigError when there is more than one socket,
    or it does not listen.
    """
    count = environment.pop("LISTEN_FDS", None)
    owner = environment.pop("LISTEN_PID", None)
    environment.pop("LISTEN_FDNAMES", None)
    if count is None or owner != str(os.getpid()):
        return None
    if count != "1":
        raise ConfigError(
            f"LISTEN_FDS={count}: expected one socket, that of appliance-server.socket"
        )
    os.set_inheritable(FIRST_LISTEN_FD, False)
    listens = 0
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(FIRST_LISTEN_FD)) as handed:
        listens = handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens:
        raise ConfigError(f"LISTEN_FDS: file descriptor {FIRST_LISTEN_FD} is no listening socket")
    return FIRST_LISTEN_FD


def _status(text: str) -> str:
    """A `STATUS=` line: one line, whatever the text."""
    return "STATUS=" + " ".join(text.split())[:STATUS_LETTERS_MAX]
