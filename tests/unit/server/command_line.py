"""Somebody at the command line of a running server: `appliance …` in this process, as a test calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from appliance.chat.publishing import fill_empty
from appliance.cli.main import main
from appliance.config import dump_config
from appliance.server.admin import serving_admin
from appliance.server.auth import Keys
from appliance.server.main import PROMPTS_DIR
from tests.unit.server.door import Door


@dataclass(slots=True, kw_only=True)
class CommandLine:
    """One person. `area` is the word that all of its commands begin with."""

    config: Path
    capsys: pytest.CaptureFixture[str]
    area: ClassVar[tuple[str, ...]] = ()

    async def printed(self, *words: str, code: int = 0) -> tuple[str, str]:
        """`appliance AREA …`; what it printed, and what to stderr."""
        command = [*self.area, *words, "--config", str(self.config)]
        assert await asyncio.to_thread(main, command) == code
        out, err = self.capsys.readouterr()
        return out, err

    async def run(self, *words: str, code: int = 0) -> str:
        """The same as one text, which is stderr's where it has any."""
        out, err = await self.printed(*words, code=code)
        return err or out

    async def ask(self, *words: str, code: int = 0) -> Any:
        """The same with --json, read."""
        return json.loads(await self.run(*words, "--json", code=code))


@asynccontextmanager
async def admin_door(door: Door, folder: Path) -> AsyncIterator[Path]:
    """A door that has the shipped characters and an admin socket; the settings that lead there."""
    services = door.services
    path = folder / "box.toml"
    path.write_text(dump_config(services.config))
    await fill_empty(services.catalog.registry, PROMPTS_DIR)
    await services.catalog.reload()
    async with serving_admin(services, Keys.from_config(services.config.server)):
        yield path
