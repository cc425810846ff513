"""What `appliance db run` writes on a real terminal: a question stands, and a line keeps to its width."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.cli.db_run_terminal import TerminalReport
from appliance.dbops.plan.plan import make_plan
from appliance.dbops.plan.policy import Policy
from appliance.dbops.plan.step import Consent
from appliance.dbops.repair.progress import Progress
from tests.snapshot_builder import OLD, database, slot, snapshot

WIDTH = 60
QUIET_S = 0.2
LONG = Progress(
    stage=1,
    steps_done=1,
    steps_total=341,
    bytes_done=0,
    bytes_total=1 << 30,
    rate_bytes_per_s=50e6,
    seconds_left=20.0,
    running=(
        ("app.public.messages", 0.45),
        ("app.public." + "\N{CJK UNIFIED IDEOGRAPH-8CA8}" * 20, 0.2),
    ),
)


@contextmanager
def a_terminal() -> Iterator[int]:
    """The other side of a terminal that is this process's input and output meanwhile."""
    other, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    with (
        pytest.MonkeyPatch.context() as patched,
        os.fdopen(os.dup(terminal)) as stdin,
        os.fdopen(terminal, "w") as stdout,
    ):
        patched.delenv("COLUMNS", raising=False)
        patched.setattr(sys, "stdin", stdin)
        for name in ("stdout", "__stdout__"):
            patched.setattr(sys, name, stdout)
        yield other
    os.close(other)


def shown(keyboard: int) -> str:
    """All that was written; the kernel hands it over in parts."""
    parts = b""
    while select.select([keyboard], [], [], QUIET_S)[0]:
        parts += os.read(keyboard, 65_536)
    return parts.decode()


async def test_no_progress_is_written_over_a_question() -> None:
    with a_terminal() as keyboard:
        report = TerminalReport()
        (step,) = make_plan(
            snapshot(database("app"), slots=(slot("s", xmin_age=OLD),)), Policy()
        ).stage(1)[:1]
        report.progressed(LONG)
        assert shown(keyboard).startswith("\r  1 of 341 steps")
        asked = asyncio.ensure_future(report.ask(step))
        await asyncio.sleep(0)
        question = shown(keyboard)
        assert question.startswith("\r" + " " * (WIDTH - 1) + "\r  drop slot")
        assert question.endswith("type slot to do it, anything else to leave it: ")
        report.progressed(LONG)
        report.said("the disk is full")
        again = shown(keyboard)
        assert again == "\r\nthe disk is full\r\n  type slot to do it, anything else to leave it: "
        os.write(keyboard, b"slot\n")
        choice = await asked
        assert choice is not None
        assert choice.consent is Consent.SLOT
        report.progressed(LONG)
        assert "of 341 steps" in shown(keyboard)


async def test_a_line_of_progress_is_narrower_than_the_terminal() -> None:
    with a_terminal() as keyboard:
        report = TerminalReport()
        report.progressed(LONG)
        line = shown(keyboard).strip("\r")
        assert line.endswith("…")
        assert WIDTH - 3 <= len(line) <= WIDTH - 1
