"""What the service manager hears, on a real socket; and the sockets it hands over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.service_manager import (
    FEEDS_PER_INTERVAL,
    STATUS_LETTERS_MAX,
    ServiceManager,
    inherited_socket,
    service_manager,
)


class Heard:
    """The manager's end of the protocol."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def take(self) -> list[list[str]]:
        """The datagrams that have come, each as its lines."""
        said = []
        while True:
            try:
                said.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return said

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Heard]:
    address = (
        str(tmp_path / "notify") if request.param == "path" else f"@appliance-test-{os.getpid()}"
    )
    listening = Heard(address)
    yield listening
    listening.close()


def test_what_is_said_arrives_as_the_protocol_has_it(heard: Heard) -> None:
    manager = service_manager({"NOTIFY_SOCKET": heard.address})
    manager.starting("loading\nREADY=1")
    manager.ready("serving")
    manager.stopping("draining", within_s=12.5)
    assert heard.take() == [
        ["EXTEND_TIMEOUT_USEC=30000000", "STATUS=loading READY=1"],
        ["READY=1", "STATUS=serving"],
        ["STOPPING=1", "EXTEND_TIMEOUT_USEC=12500000", "WATCHDOG_USEC=0", "STATUS=draining"],
    ]
    manager.status("x" * 1000)
    assert heard.take() == [["STATUS=" + "x" * STATUS_LETTERS_MAX]]


def test_the_watchdog_is_fed_twice_an_interval_at_least_and_not_at_every_turn(heard: Heard) -> None:
    now = 100.0
    manager = ServiceManager(heard.address, watchdog_s=2.0, clock=lambda: now)
    every_s = manager.feed_every_s
    assert every_s is not None
    assert every_s <= 1.0
    for _ in range(400):
        manager.alive()
        now += 0.01
    assert heard.take() == [["WATCHDOG=1"]] * (2 * FEEDS_PER_INTERVAL)


def test_a_start_that_takes_long_is_extended_while_it_works(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.service_manager.EXTEND_EVERY_S", 0.01)
    manager = service_manager({"NOTIFY_SOCKET": heard.address})
    said: list[list[str]] = []
    with manager.working("loading the model"):
        until = time.monotonic() + 60
        while len(said) <= 2 and time.monotonic() < until:
            time.sleep(0.01)
            said += heard.take()
    said += heard.take()
    assert len(said) > 2
    assert {lines[0] for lines in said} == {"EXTEND_TIMEOUT_USEC=30000000"}
    time.sleep(0.05)
    assert heard.take() == []


def test_without_a_manager_nothing_is_said_and_nothing_fails() -> None:
    manager = service_manager({})
    manager.ready("serving")
    manager.alive()
    with manager.working("loading"):
        manager.stopping("draining", within_s=1)
    assert manager.feed_every_s is None


def test_a_manager_that_is_gone_stops_nothing(heard: Heard) -> None:
    manager = service_manager({"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "2000000"})
    heard.close()
    manager.ready("serving")
    manager.alive()


def test_the_variables_are_taken_out_so_that_no_child_speaks_for_its_parent() -> None:
    environment = {
        "NOTIFY_SOCKET": "@nobody",
        "WATCHDOG_USEC": "5000000",
        "WATCHDOG_PID": str(os.getpid()),
        "LISTEN_FDS": "1",
        "LISTEN_PID": "1",
        "LISTEN_FDNAMES": "x",
        "PATH": "/bin",
    }
    assert service_manager(environment).feed_every_s == 1.25
    assert inherited_socket(environment) is None
    assert environment == {"PATH": "/bin"}


def test_another_process_s_watchdog_is_not_fed() -> None:
    environment = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}
    assert service_manager(environment).feed_every_s is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTIFY_SOCKET", "relative"),
        ("NOTIFY_SOCKET", "@"),
        ("WATCHDOG_USEC", "-1"),
        ("WATCHDOG_USEC", ""),
    ],
)
def test_variables_that_cannot_be_meant_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        service_manager({name: value})


HANDED = """
import os, socket
from appliance.service_manager import inherited_socket
os.environ["LISTEN_PID"] = str(os.getpid())
number = inherited_socket(os.environ)
handed = socket.socket(fileno=number)
print(number, handed.getsockname()[1], os.get_inheritable(number))
"""


def test_a_socket_unit_s_socket_is_taken_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        said = subprocess.run(
            ["bash", "-c", f'exec "$0" -c "$1" 3<&{listening.fileno()}', sys.executable, HANDED],
            env={**os.environ, "LISTEN_FDS": "1"},
            pass_fds=[listening.fileno()],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert said.split() == ["3", str(listening.getsockname()[1]), "False"]


def test_two_sockets_are_refused() -> None:
    environment = {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())}
    with pytest.raises(ConfigError, match="LISTEN_FDS=2"):
        inherited_socket(environment)
