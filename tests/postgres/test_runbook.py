"""The samples in docs/runbook.md are what the program says: in the drill `prepared`, step for step."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.dbops.drill.registry import situation
from appliance.dbops.drill.throwaway import silent
from tests.drill_fixtures import EMBEDDED, NewDrill

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
ELSEWHERE = "database of the installed appliance:"
"""Begins the one line of a screen that is about the machine."""

CUT = "…"
AGREED = "prepared-commit"


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
    """Words in a row, whatever is wrapped where; numbers only where they count what is there."""
    counted = r"(?! (?:steps|tables|catalogs|b-trees|of 3 workers))"
    text = re.sub(rf"\d[\d,.:-]*+{counted}", "#", text)
    return " ".join(re.sub(r"# (?:s|min) ago", "# ago", text).split())


class Terminal(io.StringIO):
    """Somebody who agrees to whatever is asked."""

    def isatty(self) -> bool:
        return True

    def readline(self, _: int | None = None) -> str:
        print(AGREED)
        return f"{AGREED}\n"


async def test_each_sample_is_what_the_program_says(
    new_drill: NewDrill,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drill = await new_drill(EMBEDDED)
    await drill.drive(situation("prepared"), silent)
    place = ["--data-dir", str(drill.cluster.directory), "--state-dir", str(tmp_path)]
    kept = str(tmp_path / "before.json")

    async def say(*words: str) -> str:
        await asyncio.to_thread(main, ["db", *words, *place])
        return plain(capsys.readouterr().out)

    said = {name: await say(name) for name in ("status", "diagnose", "plan")}
    await say("verify", "--no-probe", "--record", kept, "--hash")
    said["declined"] = await say("run", "--execute")
    monkeypatch.setattr("sys.stdin", Terminal())
    said["stage"] = await say("run", "--execute")
    said["verify"] = await say("verify", "--against", kept)
    found = {}
    for head, stretches in samples():
        name = head.removeprefix("appliance db ").split()[0].rstrip(",:")
        found[name] = stretches
        for stretch in stretches:
            assert stretch in said[name], f"{head}: docs/runbook.md has\n{stretch}\n\n{said[name]}"
    assert found.keys() == said.keys()
