"""Faults that other servers were reported with (O01 to O12), tried on an installed, running box."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.box.booted import Box
from tests.box.chats import (
    ENGINE,
    NO_END,
    PORT,
    SERVER,
    Stream,
    begin,
    call,
    is_ready,
    send,
    streams_running,
    texts,
    until,
)
from tests.box.conftest import configure
from tests.box.unit_copies import run_copy

pytestmark = pytest.mark.slow

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
CHAT = "/v1/chat/completions"
SOCKET = "appliance-server.socket"
JSON_TYPE = "Content-Type: application/json"


def raw(data: bytes, *, wait_s: float = 10, then: bytes = b"", every_s: float = 0.1) -> bytes:
    """Everything that is answered to these bytes until the server closes; `then` is sent meanwhile."""
    with socket.create_connection(("127.0.0.1", PORT), timeout=wait_s) as connection:
        connection.sendall(data)
        answer = b""
        deadline = time.monotonic() + wait_s
        connection.settimeout(every_s if then else wait_s)
        while time.monotonic() < deadline:
            try:
                got = connection.recv(65536)
            except TimeoutError:
                if not then:
                    raise
                connection.sendall(then)
                continue
            except ConnectionError:
                break
            if not got:
                break
            answer += got
        return answer


def head(*lines: str, method: str = "POST", path: str = CHAT) -> bytes:
    wanted = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines)
    return ("\r\n".join(wanted) + "\r\n\r\n").encode()


def post(body: bytes, *lines: str) -> bytes:
    return raw(head(JSON_TYPE, f"Content-Length: {len(body)}", *lines) + body)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def chat(content: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "tiny", "messages": messages, "max_tokens": 4, **fields}).encode()


def resident_bytes(box: Box) -> int:
    with open(f"/proc/{box.main_pid(SERVER)}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_o01_a_stop_closes_the_door_cuts_what_is_left_and_keeps_what_was_seen(box: Box) -> None:
    conversations = box.in_network(
        lambda: [str(call("POST", "/api/conversations", {})["id"]) for _ in range(6)]
    )
    streams = [Stream(c, "hello", max_tokens=3900, box=box) for c in conversations]
    for stream in streams:
        stream.start()

    def deaf() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", PORT), timeout=10)
        body = chat("hello", stream=True, max_tokens=3900, logit_bias=NO_END)
        connection.sendall(head(JSON_TYPE, f"Content-Length: {len(body)}") + body)
        return connection

    def idle() -> socket.socket:
        return socket.create_connection(("127.0.0.1", PORT), timeout=10)

    with box.in_network(deaf), box.in_network(idle):
        until(lambda: box.in_network(streams_running) >= 7, "all accepted")
        begun = time.monotonic()
        box.run("systemctl", "stop", SOCKET, SERVER)
        assert time.monotonic() - begun < 15  # drain_s = 2
        with pytest.raises(ConnectionRefusedError):
            box.in_network(idle)
    for stream in streams:
        stream.join()
    ends = {stream.end for stream in streams}
    assert {"error"} <= ends <= {"error", "refused 503"}
    assert any(stream.text for stream in streams), "nothing was seen"
    assert box.show(SERVER, "Result") == "success"
    assert box.show(SERVER, "ExecMainStatus") == "0"
    log = box.journal("-u", SERVER)
    assert "CancelledError" not in log
    assert "Traceback" not in log
    box.run("systemctl", "start", SOCKET, SERVER)
    for stream in streams:
        if stream.text:
            stored = box.in_network(lambda stream=stream: texts(stream.conversation))  # type: ignore[misc]
            assert stream.text.replace("\0", "\u2400") in stored.values()


def test_o01_a_second_signal_ends_a_drain_at_once_and_in_order(box: Box) -> None:
    conversation = box.in_network(lambda: str(call("POST", "/api/conversations", {})["id"]))
    stream = Stream(conversation, "hello", max_tokens=3900, box=box)
    stream.start()
    stream.begun.wait()
    server = box.main_pid(SERVER)
    for _ in range(2):
        box.run("systemctl", "kill", "--signal=TERM", "--kill-who=main", SERVER)
    stream.join()
    assert stream.end == "error", stream.told
    until(lambda: box.in_network(is_ready), "started again")
    assert box.main_pid(SERVER) != server
    assert "Traceback" not in box.journal("-u", SERVER)


@pytest.mark.parametrize("unit", [SERVER, ENGINE])
def test_o03_a_frozen_loop_is_killed_and_started_again(box: Box, unit: str) -> None:
    # It answers a moment before it tells systemd so, and until then no watchdog looks at it.
    until(lambda: box.show(unit, "ActiveState") == "active", f"{unit} active")
    restarts = int(box.show(unit, "NRestarts"))
    with box.frozen(unit) as pid:
        until(lambda: int(box.show(unit, "NRestarts")) > restarts, f"{unit} started again")
    until(lambda: box.show(unit, "ActiveState") == "active", f"{unit} active again")
    assert box.main_pid(unit) != pid
    assert "Watchdog timeout" in box.journal("-u", unit)
    until(lambda: box.in_network(is_ready), "ready again")


LONG_LOAD = """
import os, sys, time
sys.path.insert(0, "/opt/appliance/current/share/appliance")
from appliance.service_manager import service_manager
manager = service_manager(os.environ)
load_s = float(sys.argv[2])
if sys.argv[1] == "working":
    with manager.working("loading the model"):
        time.sleep(load_s)
else:
    time.sleep(load_s)
manager.ready("serving")
while True:
    manager.alive()
    time.sleep(0.1)
"""


@pytest.mark.parametrize("work", ["working", "silent"])
def test_o03_a_load_longer_than_start_and_watchdog_is_not_killed_while_it_says_so(
    box: Box, work: str
) -> None:
    # In its long form the limits are those of the units, and the load takes 90 s.
    start_s, watchdog_s, load_s = (60, 15, 90) if NIGHTLY else (2, 1, 4)
    settings = ["Type=notify", f"TimeoutStartSec={start_s}", f"WatchdogSec={watchdog_s}"]
    properties = [f"--property={setting}" for setting in settings]
    words = ["/opt/appliance/current/bin/python", "-c", LONG_LOAD, work, str(load_s)]
    started = box.run("systemd-run", f"--unit=load-{work}", *properties, *words, check=False)
    if work == "working":
        assert started.returncode == 0, started.stderr
        assert box.show(f"load-{work}", "StatusText") == "serving"
        box.run("systemctl", "stop", f"load-{work}")
    else:
        assert "timeout" in started.stderr


def test_o04_an_engine_that_dies_is_told_at_once_and_started_again(box: Box) -> None:
    conversation = box.in_network(begin)
    stream = Stream(conversation, "hello", max_tokens=3900, box=box)
    stream.start()
    stream.begun.wait()
    engine, server = box.main_pid(ENGINE), box.main_pid(SERVER)
    os.kill(engine, 9)
    stream.join()
    assert stream.end == "error", stream.told
    ready = box.in_network(lambda: raw(head(method="GET", path="/ready")))
    assert status(ready) == 503, "a live server over a dead engine said that it is ready"
    until(lambda: box.in_network(is_ready), "ready again")
    assert box.main_pid(ENGINE) != engine
    assert box.main_pid(SERVER) == server
    box.in_network(lambda: send(conversation, "hello"))


def test_o06_large_slow_and_packed_bodies_cost_no_more_than_the_limits(box: Box) -> None:
    before = resident_bytes(box)
    many = [{"role": "user", "content": "m" * 3_200}] * 400
    long = json.dumps({"model": "tiny", "messages": many}).encode()
    sized = head(JSON_TYPE, "Content-Length: 1000000000")
    chunked = head(JSON_TYPE, "Transfer-Encoding: chunked")
    slow = {"wait_s": 30.0, "every_s": 0.5}

    def answers() -> list[int]:
        found = [
            status(post(long)),
            status(post(b"[" * 33_000_000)),
            status(post(gzip.compress(b"0" * 100_000_000), "Content-Encoding: gzip")),
            status(raw(head(JSON_TYPE, "Content-Length: 1000000") + b"0123456789", wait_s=30)),
            status(raw(chunked, then=b"1\r\n[\r\n", **slow)),
            status(raw(sized + b"0123456789", wait_s=30)),
            status(raw(head(*[f"X-{n}: {'h' * 8000}" for n in range(100)]))),
            status(raw(head(method="GET", path="/" + "u" * 100_000))),
            status(raw(head(JSON_TYPE, "Content-Length: 33000000", "Expect: 100-continue"))),
        ]
        dribbled = raw(b"POST /live HTTP/1.1\r\n", then=b"X", wait_s=40, every_s=0.5)
        assert dribbled == b"" or status(dribbled) in (400, 408)
        return found

    assert box.in_network(answers) == [400, 413, 413, 408, 408, 413, 400, 400, 413]
    assert resident_bytes(box) - before < 100_000_000
    assert box.in_network(is_ready)


AMBIGUOUS = (
    b"POST /v1/models HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nX-Abc: \rxTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;a\nb\r\nxx\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nbad\ntrailer\r\n\r\n",
    b"GET /v1/models HTTP/1.1\nHost: h\n\n",
)


def test_o07_a_request_whose_length_can_be_read_two_ways_is_one_refusal(box: Box) -> None:
    for request in AMBIGUOUS:
        answer = box.in_network(lambda request=request: raw(request))  # type: ignore[misc]
        assert len(re.findall(rb"HTTP/1\.\d \d{3} ", answer)) == 1, (request, answer)
        assert status(answer) == 400, (request, answer)


@contextmanager
def keys_of(box: Box, **keys: str) -> Iterator[None]:
    """The server with these API keys as its credential, by tenant."""
    path = box.root / "etc/appliance/credentials/api_keys.toml"
    tables = [
        f'[[api_keys]]\ntenant = "{tenant}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        for tenant, key in keys.items()
    ]
    path.write_text("".join(tables), encoding="utf-8")
    path.chmod(0o600)
    try:
        box.run("systemctl", "restart", SERVER)
        yield
    finally:
        path.unlink()
        box.run("systemctl", "restart", SERVER)


WRONG = (
    "426561726572206b6579e28099",
    "42656172657220c3a9",
    "42656172657220efbbbf6b",
    "426561726572",
    "4265617265722020",
    "42617369632076616c6964",
    "426561726572" + "20" + "7a7a7a" * 1000,
)


def test_o09_a_wrong_key_is_refused_whatever_its_bytes_and_never_logged(box: Box) -> None:
    def asked(*values: bytes) -> bytes:
        lines = b"".join(b"Authorization: " + value + b"\r\n" for value in values)
        return raw(
            b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + lines + b"\r\n"
        )

    with keys_of(box, a="valid", b="other"):
        for key in (b"bearer valid", b"Bearer other"):
            assert status(box.in_network(lambda key=key: asked(key))) == 200  # type: ignore[misc]
        for text in WRONG:
            answer = box.in_network(lambda text=text: asked(bytes.fromhex(text)))  # type: ignore[misc]
            assert status(answer) == 401, (text, answer)
            assert b"WWW-Authenticate" in answer
            assert b'"error"' in answer
        two = box.in_network(lambda: asked(b"Bearer valid", b"Bearer valid"))
        assert status(two) in (400, 401)
        assert status(box.in_network(asked)) == 401
    log = box.journal("-u", SERVER)
    assert "zzz" not in log
    assert "Traceback" not in log


def test_o11_the_journal_has_few_lines_and_nothing_that_was_said(box: Box) -> None:
    polls, goings, bad_ones = (3600, 100, 50) if NIGHTLY else (300, 20, 20)
    marked = chat(
        "MARKER-PROMPT\r\nERROR fake log line \x1b[31m", user="MARKER-USER\r\n\x1b[31mERROR"
    )

    def leave() -> None:
        body = chat("MARKER-GONE", stream=True, max_tokens=3900)
        with socket.create_connection(("127.0.0.1", PORT), timeout=10) as connection:
            connection.sendall(head(JSON_TYPE, f"Content-Length: {len(body)}") + body)
            connection.recv(100)

    def busy() -> None:
        for _ in range(polls):
            call("GET", "/live")
        assert status(post(marked, "Authorization: Bearer sk-MARKER-KEY")) == 200
        for _ in range(goings):
            leave()
        for _ in range(bad_ones):
            assert status(post(b'{"MARKER-BODY"')) == 400
        raw(b"GET /MARKER\x1b[31m HTTP/9.9\r\nMARKER: \x00\r\n\r\n")
        assert status(raw(head(method="GET", path="/MARKER%0d%0aERROR%20fake"))) == 404
        send(begin("MARKER-STORED"), "MARKER-TOO")

    before = len(box.journal("-u", SERVER).splitlines())
    box.in_network(busy)
    until(lambda: box.in_network(streams_running) == 0, "those who left are gone")
    assert len(box.journal("-u", SERVER).splitlines()) - before < 300
    whole = box.journal()
    assert "MARKER" not in whole, "the journal tells what was said"
    assert "fake log line" not in whole


O12 = (
    ("mode", "/srv/models/closed/deep", "/srv/models/closed", "model-not-readable"),
    ("home", "/home/bob/model", "/home", "model-hidden"),
    ("absent", "/srv/models/absent", "/srv/models/absent", "model-missing"),
)


@pytest.mark.parametrize(("name", "model", "component", "fault"), O12)
def test_o12_what_the_service_may_not_use_is_named_before_anything_is_loaded(
    box: Box, name: str, model: str, component: str, fault: str
) -> None:
    box.run("sh", "-c", f"mkdir -p /srv/models/closed /home/bob; cp -r /srv/models/tiny {model}")
    box.run("chmod", "0700", "/srv/models/closed")
    if name == "absent":
        box.run("rm", "-r", model)
    toml = box.root / "etc/appliance/appliance.toml"
    text = toml.read_text(encoding="utf-8")
    try:
        configure(box, {"path": f'path = "{model}"'})
        begun = time.monotonic()
        command = (
            "/opt/appliance/current/bin/appliance engine --config /etc/appliance/appliance.toml"
        )
        worked, said = run_copy(box, "appliance-engine@.service", f"o12-{name}", command)
        assert not worked
        assert time.monotonic() - begun < (5 if NIGHTLY else 15)
        doctor = box.run("appliance", "doctor", check=False).stdout
    finally:
        toml.write_text(text, encoding="utf-8")
    assert "model.path" in said
    assert f"{component}" in said
    assert "uid" in said
    assert "Traceback" not in said
    assert [line for line in doctor.splitlines() if line.startswith("model-")] == [fault]


def test_o12_a_state_folder_of_somebody_else_is_named_with_its_owner(box: Box) -> None:
    box.run("mkdir", "-p", "/srv/state")
    toml = box.root / "etc/appliance/appliance.toml"
    text = toml.read_text(encoding="utf-8")
    try:
        configure(box, {"data_dir": 'data_dir = "/srv/state"'})
        command = (
            "/opt/appliance/current/bin/appliance server --config /etc/appliance/appliance.toml"
        )
        worked, said = run_copy(box, "appliance-server.service", "o12-state", command)
        doctor = box.run("appliance", "doctor", check=False).stdout
    finally:
        toml.write_text(text, encoding="utf-8")
    assert not worked
    assert "paths.data_dir" in said
    assert "/srv/state" in said
    assert "wrong-owner" in doctor


def test_o12_a_configuration_with_a_key_that_everybody_may_read_is_told(box: Box) -> None:
    toml = box.root / "etc/appliance/appliance.toml"
    text = toml.read_text(encoding="utf-8")
    digest = hashlib.sha256(b"key").hexdigest()
    try:
        table = f'\n[[server.api_keys]]\ntenant = "a"\nsha256 = "{digest}"\n'
        toml.write_text(text + table, encoding="utf-8")
        box.run("chmod", "0644", "/etc/appliance/appliance.toml")
        assert "config-open-to-all" in box.run("appliance", "doctor", check=False).stdout
    finally:
        toml.write_text(text, encoding="utf-8")
        box.run("chmod", "0640", "/etc/appliance/appliance.toml")


def test_the_appliance_is_still_as_it_was_installed(box: Box) -> None:
    """After all of the above: nothing of it needed a person."""
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"
    failed = box.run("systemctl", "--failed", "--plain", "--no-legend").stdout
    assert "appliance" not in " ".join(line.split()[0] for line in failed.splitlines())
    assert box.in_network(is_ready)
