"""Chats with a box over HTTP, as a client on it has them. To be called in the box's network."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.box.booted import Box

PORT = 8400
PATIENCE_S = 60.0
SERVER, ENGINE = "appliance-server.service", "appliance-engine@0.service"
POSTGRES = "appliance-postgres.service"
UNITS = (SERVER, ENGINE, POSTGRES)
NO_END = {"0": -100, "1": -100, "2": -100}
"""The tiny model's control tokens: a reply is as long as it may be."""

JSON = {"Content-Type": "application/json"}


def call(method: str, path: str, body: object = None, timeout_s: float = 30) -> Any:
    """One JSON call, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, JSON)
        response = connection.getresponse()
        text = response.read()
        assert response.status in (200, 201), (response.status, text)
        return json.loads(text)
    finally:
        connection.close()


def begin(first: str = "hello hello hello hello hello hello") -> str:
    """A new conversation with one turn; its id."""
    conversation = str(call("POST", "/api/conversations", {})["id"])
    send(conversation, first)
    return conversation


def send(conversation: str, text: str) -> dict[str, Any]:
    """One turn, to its last event, which is `done`."""
    stream = Stream(conversation, text, max_tokens=8)
    stream.run()
    assert stream.end == "done", (stream.end, stream.told)
    return stream.told


def texts(conversation: str) -> dict[str, str]:
    """Every stored message by id."""
    told = call("GET", f"/api/conversations/{conversation}")
    return {message["id"]: message["text"] for message in told["messages"]}


class Stream(threading.Thread):
    """One turn as events. `end`: the last one's name, `lost` when there was none; `text`: what was seen.

    `box`: whose network it is run in when it is a thread.
    """

    def __init__(
        self, conversation: str, text: str, *, max_tokens: int, box: Box | None = None
    ) -> None:
        super().__init__()
        self.conversation = conversation
        self.begun = threading.Event()
        self.end, self.text = "lost", ""
        self.told: dict[str, Any] = {}
        self._box = box
        body = {"text": text, "max_tokens": max_tokens, "logit_bias": NO_END}
        self._body = json.dumps(body).encode()

    def run(self) -> None:
        if self._box is not None:
            self._box.in_network(self._run)
        else:
            self._run()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=90)
        try:
            path = f"/api/conversations/{self.conversation}/messages"
            connection.request("POST", path, self._body, JSON)
            response = connection.getresponse()
            if response.status != 200:
                self.end, self.told = f"refused {response.status}", json.loads(response.read())
                return
            name = ""
            for line in response:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data":
                    self._take(name, json.loads(rest))
        except (OSError, http.client.HTTPException) as error:
            self.end, self.told = "lost", {"error": repr(error)}
        finally:
            self.begun.set()
            connection.close()

    def _take(self, name: str, told: dict[str, Any]) -> None:
        self.begun.set()
        if name == "delta":
            self.text += told["text"]
        elif name in ("done", "error"):
            self.end, self.told = name, told


def metrics() -> dict[str, float]:
    """One scrape: each sample's value by its name and labels."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def streams_running() -> int:
    """How many replies the server is giving, those that wait for their turn included."""
    return int(metrics()["appliance_streams_running"])


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_ready() -> bool:
    """Whether chats can be answered."""
    try:
        call("GET", "/ready", timeout_s=5)
    except (OSError, AssertionError, http.client.HTTPException):
        return False
    return True
