"""A catalog whose one character is what every conversation was moved to."""

from __future__ import annotations

from appliance.chat.catalog import Catalog
from appliance.chat.plan import Planner
from appliance.prompt.characters import Character, Characters, CharacterVersion
from appliance.prompt.templates.template import Template


class _Moved(Catalog):
    async def of(self, character_id: str | None, version: str | None) -> CharacterVersion:
        return self.current.get(character_id)


def move_all(planner: Planner, character: Character, template: Template) -> None:
    """From now on every prompt is made with these, whatever version its conversation holds."""
    version = CharacterVersion(character=character, template=template, version="0" * 64)
    moved = _Moved(planner.catalog.registry, current=Characters.of([version]))
    object.__setattr__(planner, "catalog", moved)
