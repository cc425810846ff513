"""The document's worked example as it stands, and a check with metrics that fail."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from pathlib import Path

import pytest

from appliance.cli.experiment_check import check_again
from tests.unit.server.test_conversations import create, send
from tests.unit.server.test_experiments import REPORT, Team, started, team

__all__ = ["team"]

DOCS = Path(__file__).parents[3] / "docs" / "experiments.md"


def worked_example(folder: Path) -> list[str]:
    """The commands of the document's example, once its files are written."""
    section = DOCS.read_text().partition("## A worked example\n")[2].partition("\n## ")[0]
    commands: list[str] = []
    for language, body in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
        if language == "sh":
            commands += body.splitlines()
            continue
        file = folder / body.splitlines()[0].lstrip("#- ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(body)
    return commands


async def test_the_worked_example_of_the_docs_runs_as_it_stands(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(team.folder)
    team.door.say("one", " two")
    told: list[str] = []
    for line in worked_example(team.folder):
        if line == "# Days later: users talk.":
            for number in range(12):
                opened = await create(team.door, character="ada", user=f"user {number}")
                await send(team.door, opened, "Hello")
        elif command := shlex.split(line, comments=True):
            told.append(await team.run(*command[1:]))
    assert "nothing is wrong" in told[3]
    assert "with 10% of the users" in told[5]
    assert "with 50% of the users" in told[6]
    assert "Did it help?" in told[9]
    assert "Messages sent at night" in (team.folder / "ships.html").read_text()
    assert "production -> f5004817" in told[11]
    assert "Measured since:" in told[12]
    assert f"as arm ships of experiment ships; why: {REPORT}" in told[13]


OWN = """
- {name: own, title: Own, unit: share, direction: up, group: engagement, numerator: own.value}
"""
ENDED = "CASE WHEN pg_terminate_backend(pg_backend_pid()) THEN 1.0 ELSE 0.0 END"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("1 / (person - person)", "own.sql: division by zero"),
        ("love", 'own.sql: column "love" does not exist'),
        (ENDED, "the database failed: "),
    ],
)
async def test_a_check_outlives_what_its_database_does_and_names_the_query_at_fault(
    team: Team, value: str, told: str
) -> None:
    team.door.say("one")
    await started(team)
    await send(team.door, await create(team.door, character="ada", user="mo"), "Hello")
    own = team.folder / "own"
    own.mkdir()
    (own / "metrics.yaml").write_text(OWN)
    (own / "own.sql").write_text(
        f"SELECT person, ({value})::float8 AS value FROM appliance.experiment_people($1::text)"
    )
    assert told in await team.run("experiment", "report", "ships", "--metrics", str(own), code=2)
    options = argparse.Namespace(
        config=team.config, data_dir=None, metrics=own, pages=None, json=False
    )
    await asyncio.to_thread(check_again, options)
    out, err = team.capsys.readouterr()
    assert told in out + err
