"""The appliance under a real systemd: installed, chatting, restarted, frozen, stopped, booted again."""

from __future__ import annotations

import json
import os
import re
import threading
import time

import psutil
import pytest

from appliance.store.migrate import load_migrations
from tests.box.booted import Box
from tests.box.chats import (
    ENGINE,
    SERVER,
    UNITS,
    Stream,
    begin,
    call,
    is_ready,
    metrics,
    send,
    streams_running,
    texts,
    until,
)
from tests.box.conftest import configure

pytestmark = pytest.mark.slow

NIGHTLY = "APPLIANCE_TESTS_NIGHTLY" in os.environ
STREAMS = 50
SYSTEM = "etc/systemd/system"
STOP_LIMIT_S = 60.0


def test_an_installed_box_answers_its_first_chat_and_its_doctor_finds_no_fault(box: Box) -> None:
    assert box.run("appliance", "system", "install", "--execute").stdout == "nothing to do\n"
    assert box.run("appliance", "system", "check").stdout == "installed as it should be\n"
    again = box.run("appliance", "system", "install", "--start", "--execute").stdout
    assert again.partition("next:\n    appliance status ")[1]
    head = (
        (box.root / "etc/appliance/appliance.toml").read_text(encoding="utf-8").partition("\n[")[0]
    )
    docs = re.findall(r"/\S+\.md", head)
    assert docs
    box.run("ls", *docs)
    for unit in UNITS:
        assert box.show(unit, "ActiveState") == "active", box.journal("-n", "60")
        assert box.show(unit, "StatusText") == "serving"
    box.in_network(begin)
    doctor = box.run("appliance", "doctor", check=False)
    assert (doctor.returncode, doctor.stdout) == (0, "no fault found\n")
    for name in ("db-status", "db-backup", "cache-audit", "experiment-check"):
        box.run("systemctl", "start", f"appliance-{name}.service")
    status = json.loads(box.run("appliance", "status", "--json").stdout)
    assert status["server"]["ready"]
    assert status["engines"]["engine"]["values"]["finished"] >= 1
    assert status["database"]["schema_version"] == len(load_migrations())
    told = box.in_network(metrics)
    assert told["appliance_db_up"] == 1
    assert time.time() - told["appliance_db_backup_timestamp_seconds"] < 600
    assert told["appliance_disk_free_bytes"] > 0
    for name in ("db-status", "db-backup", "cache-audit", "experiment-check"):
        assert told[f'appliance_task_failed{{task="{name}"}}'] == 0


def test_a_task_that_fails_is_in_the_journal_as_an_error_and_in_the_metrics(box: Box) -> None:
    audit = "appliance-cache-audit.service"
    name = 'appliance_task_failed{task="cache-audit"}'
    box.run("systemctl", "stop", ENGINE)
    try:
        assert box.run("systemctl", "start", audit, check=False).returncode == 1
    finally:
        box.run("systemctl", "start", ENGINE)
    said = box.journal("-u", audit, "-p", "err").splitlines()
    assert any(line.startswith("appliance: ") for line in said), box.journal("-u", audit)
    assert "engine_lost" in box.journal("-u", SERVER, "-p", "warning")
    assert "server_started" not in box.journal("-u", SERVER, "-p", "warning")
    assert "server_started" in box.journal("-u", SERVER)
    assert box.in_network(metrics)[name] == 1
    until(lambda: box.in_network(is_ready), "ready again")
    box.run("systemctl", "start", audit)
    assert box.in_network(metrics)[name] == 0


def test_a_restart_of_the_server_refuses_no_connection_and_keeps_what_is_cached(box: Box) -> None:
    ending = threading.Event()
    answers: list[bool] = []

    def knock() -> None:
        while not ending.is_set():
            answers.append(call("GET", "/live", timeout_s=30)["live"])

    conversation = box.in_network(begin)
    engine, server = box.main_pid(ENGINE), box.main_pid(SERVER)
    knocking = threading.Thread(target=lambda: box.in_network(knock))
    knocking.start()
    try:
        until(lambda: len(answers) > 0, "answered")
        before = len(answers)
        box.run("systemctl", "restart", SERVER)
        until(lambda: box.in_network(is_ready), "ready again")
        until(
            lambda: len(answers) > before + 1, "the one that waited is answered, and the next one"
        )
    finally:
        ending.set()
        knocking.join()
    assert all(answers)
    assert box.main_pid(SERVER) != server
    assert box.main_pid(ENGINE) == engine
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done


def test_a_service_that_ends_again_and_again_is_named_though_it_never_counts_as_failed(
    box: Box,
) -> None:
    toml = box.root / "etc/appliance/appliance.toml"
    text = toml.read_text(encoding="utf-8")
    try:
        configure(box, {"path": 'path = "/srv/models/none"'})
        box.run("systemctl", "restart", "--no-block", ENGINE)
        until(lambda: int(box.show(ENGINE, "NRestarts")) >= 2, "ended twice")
        assert box.run("systemctl", "--failed", "--plain", "--no-legend").stdout == ""
        doctor = box.run("appliance", "doctor", check=False).stdout
        status = box.run("appliance", "status", check=False).stdout
    finally:
        toml.write_text(text, encoding="utf-8")
    assert f"service-restarting\n    {ENGINE} " in doctor
    assert f"RESTARTING: {ENGINE} " in status
    # A restart would be told of the start that is failing just now.
    box.run("systemctl", "stop", ENGINE)
    box.run("systemctl", "reset-failed", ENGINE)
    box.run("systemctl", "start", ENGINE)
    until(lambda: box.in_network(is_ready), "ready again")
    assert box.run("appliance", "doctor").stdout == "no fault found\n"


def test_a_restart_of_all_under_clients_that_connect_ends(box: Box) -> None:
    """It was seen to hang once: whatever is asked meanwhile, it is over within the units' limits."""
    ending = threading.Event()

    def knock() -> None:
        while not ending.is_set():
            is_ready()

    knocking = [threading.Thread(target=lambda: box.in_network(knock)) for _ in range(4)]
    for thread in knocking:
        thread.start()
    try:
        for _ in range(20 if NIGHTLY else 1):
            box.run("systemctl", "restart", "appliance.target", timeout_s=STOP_LIMIT_S)
            for unit in UNITS:
                assert box.show(unit, "ActiveState") == "active", box.journal("-n", "80")
    finally:
        ending.set()
        for thread in knocking:
            thread.join()
    assert box.in_network(is_ready)


def test_a_stop_under_streams_ends_each_of_them_and_loses_nothing_of_what_was_seen(
    box: Box,
) -> None:
    conversations = box.in_network(
        lambda: [str(call("POST", "/api/conversations", {})["id"]) for _ in range(STREAMS)]
    )
    # Some end by themselves, some are cut, and some still wait for their turn.
    streams = [
        Stream(conversation, "hello", max_tokens=8 if number % 5 == 0 else 3900, box=box)
        for number, conversation in enumerate(conversations)
    ]
    for stream in streams:
        stream.start()
    # Each is done already, or is one that the server has accepted.
    until(
        lambda: box.in_network(streams_running) + sum(s.end == "done" for s in streams) >= STREAMS,
        "every stream accepted",
    )
    # All of its parts, by name: `stop` waits for what it names alone.
    box.run("systemctl", "stop", "appliance.target", *UNITS, timeout_s=STOP_LIMIT_S)
    for stream in streams:
        stream.join()
    ends = {stream.end for stream in streams}
    assert ends <= {"done", "error", "refused 503"}, [(s.end, s.told) for s in streams]
    assert "error" in ends, "no stream was cut: the test proves nothing"
    assert any(stream.end == "error" and stream.text for stream in streams), "nothing was seen"
    for unit in UNITS:
        end = [box.show(unit, name) for name in ("ActiveState", "Result", "ExecMainStatus")]
        assert end == ["inactive", "success", "0"], box.journal("-u", unit)
    assert "Traceback" not in box.journal("-u", SERVER, "-u", ENGINE)
    box.run("systemctl", "start", "appliance.target")
    until(lambda: box.in_network(is_ready), "ready again")
    for stream in streams:
        stored = box.in_network(lambda stream=stream: texts(stream.conversation))  # type: ignore[misc]
        if stream.end == "done":
            assert stored[stream.told["message"]["id"]] == stream.told["message"]["text"]
        elif stream.text:
            # PostgreSQL has no U+0000: it is stored as its picture.
            assert stream.text.replace("\0", "\u2400") in stored.values(), stream.told


def test_a_stopped_box_says_so_and_nothing_else(box: Box) -> None:
    engine = box.main_pid(ENGINE)
    box.run("systemctl", "stop", "appliance.target")
    os.kill(engine, 9)
    box.run("systemctl", "stop", *UNITS)
    try:
        doctor = box.run("appliance", "doctor", check=False).stdout
        status = box.run("appliance", "status", check=False).stdout
    finally:
        box.run("systemctl", "reset-failed", "appliance*")
        box.run("systemctl", "start", "appliance.target")
    start = "systemctl start appliance.target"
    assert doctor == f"stopped\n    the appliance is stopped\n    mend: {start}\n1 found\n"
    assert "services    none active" in status
    assert f"STOPPED: {start}" in status
    until(lambda: box.in_network(is_ready), "ready again")
    assert box.run("appliance", "doctor").stdout == "no fault found\n"


STRANGER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "appliance")


@pytest.mark.parametrize("command", ["doctor", "status", "system check"])
def test_who_may_not_read_the_settings_is_told_so_and_what_can_be_seen(
    box: Box, command: str
) -> None:
    unit = box.root / SYSTEM / "appliance-engine@.service"
    text = unit.read_text(encoding="utf-8")
    try:
        unit.write_text(f"{text}# a word of somebody's\n", encoding="utf-8")
        ended = box.run(*STRANGER, *command.split(), check=False)
    finally:
        unit.write_text(text, encoding="utf-8")
        box.run("systemctl", "daemon-reload")
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode != 0
    assert "Errno" not in said
    settings = "/etc/appliance/appliance.toml"
    assert f"{settings}: permission denied for nobody (uid 65534): run this as root" in said
    # The rest is looked at. (Without a bus, as here, root alone may ask systemd.)
    if command == "system check":
        assert f"write /{SYSTEM}/appliance-engine@.service" in said
    elif command == "doctor":
        assert "not-looked-at" in said


def test_a_chat_goes_on_after_a_reboot_with_what_the_disk_kept(box: Box) -> None:
    conversation = box.in_network(begin)
    before = box.in_network(lambda: texts(conversation))
    box.power_off()
    box.boot()
    until(lambda: box.in_network(is_ready), "ready after the boot")
    assert box.in_network(lambda: texts(conversation)) == before
    values = json.loads(box.run("appliance", "status", "--json").stdout)["engines"]["engine"]
    assert values["values"]["tier_disk_bytes"] > 0
    done = box.in_network(lambda: send(conversation, "hello"))
    assert done["usage"]["cached_tokens"] > 16, done


def test_a_chat_goes_on_after_the_power_was_cut_under_a_stream(box: Box) -> None:
    conversation, other = box.in_network(begin), box.in_network(begin)
    before = box.in_network(lambda: texts(conversation))
    stream = Stream(other, "hello", max_tokens=3900, box=box)
    stream.start()
    stream.begun.wait()
    box.power_cut()
    stream.join()
    assert stream.end == "lost", stream.told
    box.boot()
    until(lambda: box.in_network(is_ready), "ready after the boot")
    assert box.in_network(lambda: texts(conversation)) == before
    for cut in (conversation, other):
        box.in_network(lambda cut=cut: send(cut, "hello"))  # type: ignore[misc]
    assert box.run("appliance", "doctor").stdout == "no fault found\n"


def test_an_uninstall_ends_every_process_before_it_deletes_what_they_have(box: Box) -> None:
    """The last of this file: nothing is left afterwards."""
    conversation = box.in_network(lambda: str(call("POST", "/api/conversations", {})["id"]))
    stream = Stream(conversation, "hello", max_tokens=3900, box=box)
    stream.start()
    stream.begun.wait()
    pids = [box.main_pid(unit) for unit in UNITS]
    box.run("systemd-run", "--unit=not-ours", "false", check=False)
    audit = box.root / f"{SYSTEM}/appliance-cache-audit.service.d/wrong.conf"
    audit.parent.mkdir()
    audit.write_text("[Service]\nExecStart=\nExecStart=false\n", encoding="utf-8")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", "appliance-cache-audit.service", check=False)
    failed = ("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert "appliance-cache-audit.service" in box.run(*failed).stdout
    box.run("appliance", "system", "uninstall", "--delete", "/var/lib/appliance", "--execute")
    assert not [pid for pid in pids if psutil.pid_exists(pid)], "a process outlived its data"
    stream.join()
    assert stream.end in ("done", "error"), stream.told
    assert not (box.root / "var/lib/appliance").exists()
    for unit in UNITS:
        ended = box.journal("-u", unit, "-n", "20")
        assert "Traceback" not in ended, ended
    assert [line.split()[0] for line in box.run(*failed).stdout.splitlines()] == [
        "not-ours.service"
    ]
    left = box.run("find", f"/{SYSTEM}", "-name", "*.conf", "-path", "*/appliance*").stdout
    # The drop-ins of these tests, which are an operator's own.
    assert {name.rpartition("/")[2] for name in left.split()} == {"impatient.conf", "wrong.conf"}
    left = box.run("find", f"/{SYSTEM}", "-name", "appliance*", "-not", "-name", "*.d").stdout
    assert left == ""
    assert (box.root / "etc/appliance/appliance.toml").exists()
