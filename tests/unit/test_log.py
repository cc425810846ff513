"""Log lines: one event is one line, with its fields."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys

import pytest

from appliance.log import EventFormatter


def format_event(message: str, **fields: object) -> str:
    record = logging.LogRecord("appliance.x", logging.INFO, "f.py", 1, message, (), None)
    record.__dict__.update(fields)
    return EventFormatter().format(record)


def test_fields_follow_the_event() -> None:
    line = format_event("turn_done", request_id="r-1", ttft_ms=12.5)
    assert line.endswith("info appliance.x turn_done request_id=r-1 ttft_ms=12.5")


def test_control_characters_cannot_forge_a_line_or_colour_the_terminal() -> None:
    line = format_event("x", name_given="a\r\nERROR fake \x1b[31m\x85\u2028")
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert 'name_given="a\\r\\nERROR fake \\u001b[31m\\u0085\\u2028"' in line


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f.py", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    line = EventFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert "ValueError: bad" in line


SPEAKS = """
import logging, sys, warnings
from appliance.cli.main import main
from appliance.log import configure_logging, tell
configure_logging(logging.DEBUG)
for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
    logging.getLogger("x").log(level, "said")
warnings.warn("old\\nforged")
main(["status", "--config", "/nowhere.toml"])
tell("one\\ntwo", logging.WARNING)
raise ValueError("first\\nsecond")
"""


@pytest.mark.parametrize("is_journal", [True, False], ids=["journal", "another"])
def test_lines_have_their_priority_in_the_journal_and_nowhere_else(is_journal: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = os.fstat(theirs.fileno())
        inode = status.st_ino if is_journal else status.st_ino + 1
        environment = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{inode}"}
        subprocess.run(
            (sys.executable, "-c", SPEAKS),
            env=environment,
            stdout=theirs.fileno(),
            stderr=theirs.fileno(),
            timeout=60,
            check=False,
        )
        lines = ours.recv(1 << 16, socket.MSG_DONTWAIT).decode().splitlines()
    said = [line for line in lines if line.endswith(" said")]
    others = lines[len(said) :]
    if is_journal:
        assert [line[:3] for line in said] == ["<7>", "<6>", "<4>", "<3>"]
        assert others[0].startswith("<4>")
        assert others[1].startswith("<3>appliance: ")
        assert others[2:4] == ["<4>one", "<4>two"]
        assert others[4:]
        assert all(line.startswith("<2>") for line in others[4:])
    else:
        assert len(said) == 4
        assert not any(line.startswith("<") for line in lines)
