"""Reading what an earlier server wrote about itself, and ending processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from appliance.dbops.cluster.account import own_account
from appliance.dbops.cluster.leftover import (
    processes_in,
    recorded_pid,
    recorded_status,
    stop_processes,
)

LOCK_FILE = "4711\n/data\n1795976840\n5432\n.\n\n 10060097         4\nready   \n"


def test_the_lock_file_tells_pid_and_state(tmp_path: Path) -> None:
    assert recorded_pid(tmp_path) is None
    assert recorded_status(tmp_path) == ""
    (tmp_path / "postmaster.pid").write_text(LOCK_FILE)
    assert recorded_pid(tmp_path) == 4711
    assert recorded_status(tmp_path) == "ready"


@pytest.mark.parametrize("text", [b"", b"\n", b"-5\n", b"zero\n", b"\xff\xfe", b"0\n"])
def test_a_damaged_lock_file_tells_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "postmaster.pid").write_bytes(text)
    assert recorded_pid(tmp_path) is None
    assert recorded_status(tmp_path) == ""


def test_a_process_in_the_folder_that_is_no_postgres_is_not_listed(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert processes_in(tmp_path, own_account()) == []
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_process_that_ignores_polite_signals_is_ended_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("appliance.dbops.cluster.leftover.IMMEDIATE_STOP_S", 0.2)
    monkeypatch.setattr("appliance.dbops.cluster.leftover.FAST_STOP_S", 0.2)
    script = "trap '' INT QUIT TERM; echo ready; while :; do sleep 0.05; done"
    stubborn = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    assert stubborn.stdout is not None
    with stubborn.stdout:
        stubborn.stdout.readline()
    assert asyncio.run(stop_processes([stubborn.pid], stubborn.pid))
    assert stubborn.wait(30) == -signal.SIGKILL


def test_stopping_what_has_already_ended_is_done_at_once() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert asyncio.run(stop_processes([ended.pid], None))
