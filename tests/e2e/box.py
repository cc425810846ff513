"""A whole appliance under test: the demo command as a user starts it, and clients for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    name: str
    data: dict[str, Any]


@dataclass(slots=True)
class Box:
    """A running demo."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path
    lines: list[str] = field(default_factory=list)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """One JSON call; raises urllib.error.HTTPError with the body readable."""
        with self.open(method, path, body) as response:
            text = response.read()
        return json.loads(text) if text else None

    def open(self, method: str, path: str, body: object = None, timeout_s: float = 120) -> Any:
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(call, timeout=timeout_s)

    def events(self, path: str, body: object) -> Iterator[Event]:
        """The events of a streamed call."""
        with self.open("POST", path, body) as response:
            name, data = "message", []
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    data.append(line.removeprefix("data:").strip())
                elif not line and data:
                    if data != ["[DONE]"]:
                        yield Event(name, json.loads("\n".join(data)))
                    name, data = "message", []

    def create_conversation(self, **fields: object) -> str:
        return str(self.request("POST", "/api/conversations", fields)["id"])

    def send(self, conversation_id: str, text: str, **fields: object) -> list[Event]:
        """One whole turn."""
        path = f"/api/conversations/{conversation_id}/messages"
        return list(self.events(path, {"text": text, **fields}))

    def child(self, name: str) -> psutil.Process:
        """The child process whose command line holds `name` (engine, server, postgres)."""
        for child in psutil.Process(self.process.pid).children():
            words = " ".join(child.cmdline())
            if f"appliance.cli.main {name}" in words or (
                name == "postgres" and "postgres" in words
            ):
                return child
        raise AssertionError(f"no child {name}")

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.request("GET", "/ready")
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise AssertionError("not ready in time")

    def kill(self, name: str) -> None:
        """kill -9 one of the processes."""
        self.child(name).send_signal(signal.SIGKILL)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        with self.open("GET", "/metrics") as response:
            text = response.read().decode()
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(float(value) for value in values)


def start_box(data_dir: Path, *, port: int = 0) -> Box:
    """Start `appliance demo` and wait until it prints the page's address."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "appliance.cli.main",
            "demo",
            "--port",
            str(port),
            "--data-dir",
            str(data_dir),
            "--no-browser",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"http://[0-9.:]+", line)
        if found:
            return Box(process=process, url=found.group(), data_dir=data_dir, lines=lines)
    raise AssertionError("the demo ended early:\n" + "".join(lines))


def stop_box(box: Box) -> int:
    """SIGTERM, and the exit status."""
    box.process.send_signal(signal.SIGTERM)
    try:
        return box.process.wait(timeout=60)
    finally:
        if box.process.poll() is None:
            for child in psutil.Process(box.process.pid).children(recursive=True):
                child.kill()
            box.process.kill()
        assert box.process.stdout is not None
        box.process.stdout.close()
