"""The appliance under a real systemd: installed, chatting, restarted, frozen, stopped."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.box.booted import Box

pytestmark = pytest.mark.slow

PORT = 8400
PATIENCE_S = 40.0
SERVER, ENGINE = "appliance-server.service", "appliance-engine@0.service"
UNITS = (SERVER, ENGINE, "appliance-postgres.service")


def call(method: str, path: str, body: object = None, timeout_s: float = 30) -> Any:
    """One JSON call, on a connection of its own; the calling thread is in the box's network."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status in (200, 201), (response.status, text)
        return json.loads(text)
    finally:
        connection.close()


def send(conversation: str, text: str) -> dict[str, Any]:
    """One turn, to its last event, which is `done`."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    try:
        body = json.dumps({"text": text, "max_tokens": 8}).encode()
        connection.request(
            "POST",
            f"/api/conversations/{conversation}/messages",
            body,
            {"Content-Type": "application/json"},
        )
        last = connection.getresponse().read().decode().strip().split("\n\n")[-1]
    finally:
        connection.close()
    name, _, data = last.partition("\n")
    assert name == "event: done", last
    told: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return told


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_ready() -> bool:
    try:
        call("GET", "/ready", timeout_s=5)
    except (OSError, AssertionError, http.client.HTTPException):
        return False
    return True


def test_an_installed_box_answers_its_first_chat_and_its_doctor_finds_no_fault(box: Box) -> None:
    assert box.run("appliance", "system", "install", "--execute").stdout == "nothing to do\n"
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"
    for unit in UNITS:
        assert box.show(unit, "ActiveState") == "active", box.journal("-n", "60")
        assert box.show(unit, "StatusText") == "serving"

    def chat() -> str:
        conversation = str(call("POST", "/api/conversations", {})["id"])
        send(conversation, "hello")
        return conversation

    box.in_network(chat)
    doctor = box.run("appliance", "doctor", check=False)
    assert (doctor.returncode, doctor.stdout) == (0, "no fault found\n")
    for name in ("db-status", "db-backup", "cache-audit"):
        box.run("systemctl", "start", f"appliance-{name}.service")
    status = json.loads(box.run("appliance", "status", "--json").stdout)
    assert status["server"]["ready"]
    assert status["engines"]["engine"]["values"]["finished"] >= 1
    assert status["database"]["schema_version"] >= 1


def test_a_restart_of_the_server_refuses_no_connection_and_keeps_what_is_cached(box: Box) -> None:
    ending = threading.Event()
    answers: list[bool] = []

    def knock() -> None:
        while not ending.is_set():
            answers.append(call("GET", "/live", timeout_s=30)["live"])

    def chat() -> str:
        conversation = str(call("POST", "/api/conversations", {})["id"])
        send(conversation, "hello hello hello hello hello")
        return conversation

    conversation = box.in_network(chat)
    engine, server = box.main_pid(ENGINE), box.main_pid(SERVER)
    knocking = threading.Thread(target=lambda: box.in_network(knock))
    knocking.start()
    try:
        box.run("systemctl", "restart", SERVER)
        until(lambda: box.in_network(is_ready), "ready again")
    finally:
        ending.set()
        knocking.join()
    assert all(answers)
    assert box.main_pid(SERVER) != server
    assert box.main_pid(ENGINE) == engine
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done


@pytest.mark.parametrize("unit", [SERVER, ENGINE])
def test_a_frozen_loop_is_killed_and_started_again(box: Box, unit: str) -> None:
    restarts = int(box.show(unit, "NRestarts"))
    with box.frozen(unit) as pid:
        until(lambda: int(box.show(unit, "NRestarts")) > restarts, f"{unit} started again")
    until(lambda: box.show(unit, "ActiveState") == "active", f"{unit} active again")
    assert box.main_pid(unit) != pid
    assert "Watchdog timeout" in box.journal("-u", unit)
    until(lambda: box.in_network(is_ready), "ready again")


LONG_LOAD = """
import os, sys, time
sys.path.insert(0, "/opt/appliance/current/tree")
from appliance.service_manager import service_manager
manager = service_manager(os.environ)
if "working" in sys.argv:
    with manager.working("loading the model"):
        time.sleep(4)
else:
    time.sleep(4)
manager.ready("serving")
time.sleep(60)
"""


@pytest.mark.parametrize("work", ["working", "silent"])
def test_a_start_that_says_that_it_works_may_take_longer_than_its_limit(
    box: Box, work: str
) -> None:
    settings = ["--property=Type=notify", "--property=TimeoutStartSec=2"]
    words = ["/opt/appliance/current/bin/python", "-c", LONG_LOAD, work]
    started = box.run("systemd-run", f"--unit=load-{work}", *settings, *words, check=False)
    if work == "working":
        assert started.returncode == 0, started.stderr
        assert box.show(f"load-{work}", "StatusText") == "serving"
        box.run("systemctl", "stop", f"load-{work}")
    else:
        assert "timeout" in started.stderr


def test_a_stop_under_streams_ends_each_of_them_with_a_terminal_event(box: Box) -> None:
    count = 12
    begun = threading.Semaphore(0)
    endings: list[str] = []

    def stream() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        body = {
            "model": "tiny",
            "stream": True,
            "max_tokens": 3900,
            "messages": [{"role": "user", "content": "hello"}],
        }
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            begun.release()
            text = response.read().decode()
            endings.append("error" if response.status != 200 else text.strip().split("\n\n")[-1])
        finally:
            connection.close()

    streams = [threading.Thread(target=lambda: box.in_network(stream)) for _ in range(count)]
    for thread in streams:
        thread.start()
    begun.acquire(timeout=PATIENCE_S)
    time.sleep(0.5)
    # All of its parts, by name: `stop` waits for what it names alone.
    box.run("systemctl", "stop", "appliance.target", *UNITS)
    for thread in streams:
        thread.join()
    assert len(endings) == count
    assert all("error" in end or end == "data: [DONE]" for end in endings), endings
    for unit in UNITS:
        end = [box.show(unit, name) for name in ("ActiveState", "Result", "ExecMainStatus")]
        assert end == ["inactive", "success", "0"], box.journal("-u", unit)
