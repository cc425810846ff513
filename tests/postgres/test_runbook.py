"""The samples in docs/runbook.md are what the program says: in the drill `prepared`, step for step."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from appliance.cli.main import main
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.throwaway import silent
from tests.drill_fixtures import EMBEDDED, NewDrill

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
ELSEWHERE = "database of the installed appliance:"
"""Begins the one line of a screen that is about the machine."""

CUT = "…"
ASKED, AGREED = "anything else to leave it:", "prepared-commit"


def samples() -> Iterator[tuple[str, list[str]]]:
    """Each screen of the numbered sections by its first line, in stretches without a cut."""
    text = RUNBOOK.read_text(encoding="utf-8").partition("## 1.")[2]
    text = text.partition("## What you may meet")[0]
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE):
        lines = [line[4:] for line in block.strip("\n").splitlines()]
        if len([line for line in lines if line]) < 3:
            continue
        head = lines[0].removeprefix("$ ")
        kept = [line for line in lines if not line.startswith(("$ appliance", ELSEWHERE))]
        stretches = "\n".join(kept).split(CUT)
        yield head, [told for stretch in stretches if (told := plain(stretch))]


def plain(text: str) -> str:
    """Words in a row, whatever is wrapped where; numbers only where they count what is there.

    Without the lines that tell of progress once a second.
    """
    text = re.sub(r"^ +\d+ of \d+ steps, .*\n", "", text, flags=re.MULTILINE)
    counted = r"(?! (?:steps|tables|catalogs|b-trees|of 3 workers))"
    text = re.sub(rf"\d[\d,.:-]*+{counted}", "#", text)
    return " ".join(re.sub(r"# (?:s|min) ago", "# ago", text).split())


def shorter(text: str) -> str:
    """A run's screen without the steps that an earlier run has done already."""
    return re.sub(r"\d+ steps", "# steps", text)


@contextmanager
def somebody(answer: str) -> Iterator[TextIO]:
    """A terminal at which one question is answered."""
    reading, writing = os.pipe()
    os.write(writing, f"{answer}\n".encode())
    with os.fdopen(reading) as terminal, os.fdopen(writing, "w"):
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        yield terminal


async def test_each_sample_is_what_the_program_says(
    new_drill: NewDrill,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("prepared"), silent)
    place = ["--data-dir", str(drill.cluster.directory), "--state-dir", str(tmp_path)]

    async def say(*words: str) -> str:
        await asyncio.to_thread(main, ["db", *words, *place])
        told = capsys.readouterr()
        assert told.err == ""
        return plain(told.out)

    said = {name: await say(name) for name in ("status", "diagnose", "plan")}
    said["declined"] = await say("run", "--execute")
    with somebody(AGREED) as terminal, monkeypatch.context() as patched:
        patched.setattr("sys.stdin", terminal)
        told = await say("run", "--execute", "--rows", "hash")
    said["stage"] = shorter(told.replace(ASKED, f"{ASKED} {AGREED}"))
    said["verify"] = await say("verify")
    found = {}
    for head, stretches in samples():
        name = head.removeprefix("appliance db ").split()[0].rstrip(",:")
        found[name] = stretches
        for stretch in map(shorter if name == "stage" else str, stretches):
            assert stretch in said[name], f"{head}: docs/runbook.md has\n{stretch}\n\n{said[name]}"
    assert found.keys() == said.keys()
