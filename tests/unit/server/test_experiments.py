"""An experiment over real HTTP, a real PostgreSQL and the admin socket, as a product team runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.chat.publishing import fill_empty
from appliance.cli.main import main
from appliance.config import dump_config
from appliance.server.admin import serving_admin
from appliance.server.auth import Keys
from appliance.server.main import PROMPTS_DIR
from tests.unit.server.door import Door
from tests.unit.server.test_conversations import create, get, send

EXPERIMENT = """
name: ships
hypothesis: Ships are better company than birds.
character: ada
primary: [messages_sent]
warm_up_minutes: 0
arms:
  - {name: birds, version: production}
  - {name: ships, version: SHIPS}
"""


@dataclass(slots=True, kw_only=True)
class Team:
    """A product team at the command line."""

    config: Path
    folder: Path
    door: Door
    capsys: pytest.CaptureFixture[str]

    async def run(self, *words: str, code: int = 0) -> str:
        """`appliance …`; what it printed, to stderr when it failed."""
        assert await asyncio.to_thread(main, [*words, "--config", str(self.config)]) == code
        out, err = self.capsys.readouterr()
        return err or out

    async def ask(self, *words: str) -> Any:
        return json.loads(await self.run(*words, "--json"))

    async def publish(self, counted: str) -> str:
        path = self.folder / "ada.yaml"
        path.write_text(f"id: ada\nname: Ada\nsystem: You are Ada, who counts {counted}.\n")
        return str((await self.ask("prompt", "publish", str(path), "-m", counted))["version"])

    def write(self, text: str) -> str:
        path = self.folder / "experiment.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
async def team(
    stored_door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Team]:
    services = stored_door.services
    path = tmp_path / "box.toml"
    path.write_text(dump_config(services.config))
    await fill_empty(services.catalog.registry, PROMPTS_DIR)
    await services.catalog.reload()
    async with serving_admin(services, Keys.from_config(services.config.server)):
        yield Team(config=path, folder=tmp_path, door=stored_door, capsys=capsys)


async def started(team: Team) -> tuple[str, str]:
    """The versions of two arms of an experiment that runs."""
    birds = await team.publish("birds")
    await team.run("prompt", "label", "ada", "production", birds, "-m", "go")
    ships = await team.publish("ships")
    text = EXPERIMENT.replace("SHIPS", ships[:12])
    await team.run("experiment", "create", team.write(text), "-m", "let us see")
    await team.run("experiment", "start", "ships", "-m", "go")
    return birds, ships


async def test_from_a_file_to_figures_by_arm_and_on_to_production(team: Team) -> None:
    door = team.door
    door.say("one", " two")
    birds, ships = await started(team)
    opened: dict[str, str] = {}
    for number in range(12):
        user = f"user {number}"
        opened[user] = await create(door, character="ada", user=user)
        for _ in range(1 + number % 3):
            await send(door, opened[user], "Hello")
    pinned = {
        user: (await get(door, f"/api/conversations/{id}"))["prompt_version"]
        for user, id in opened.items()
    }
    assert set(pinned.values()) == {birds, ships}
    report = await team.ask("experiment", "report", "ships")
    by_arm = [list(pinned.values()).count(version) for version in (birds, ships)]
    assert report["users"] == by_arm
    figures = {figure["metric"]: figure["values"] for figure in report["metrics"]}
    for place, version in enumerate((birds, ships)):
        mine = [number for number, own in enumerate(pinned.values()) if own == version]
        sent = sum(1 + number % 3 for number in mine)
        assert figures["messages_sent"][place] == pytest.approx(sent / len(mine))
        assert figures["conversations"][place] == 1
        assert figures["regenerations"][place] == 0
        assert figures["ttft_p50"][place] >= 0
    text = await team.run("experiment", "report", "ships")
    assert "Messages sent" in text
    status = await team.run("experiment", "status", "ships")
    assert "let us see" in status

    later = await create(door, character="ada")  # The tenant itself is the user.
    await send(door, later, "Hello")
    shipped = await team.run("experiment", "ship", "ships", "ships", "-m", "they were right")
    assert f"production -> {ships[:12]}" in shipped
    history = await team.run("prompt", "history", "ada")
    assert "experiment ships, arm ships: they were right" in history
    new = await create(door, character="ada", user="somebody new")
    turn = (await send(door, new, "Hello")).chunks[0]
    assert turn["prompt_version"] == ships
    for user, conversation in opened.items():
        turn = (await send(door, conversation, "And now?")).chunks[0]
        assert turn["prompt_version"] == pinned[user], "who has begun keeps the version"
    kept = await team.ask("experiment", "status", "ships")
    assert kept["experiment"]["state"] == "shipped"
    assert kept["events"][-1]["has_report"]
