"""Characters for tests, made from bundles as the product makes them."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.characters import Characters, CharacterVersion


def bundle_of(name: str, *, templates: Mapping[str, str] = {}, **fields: object) -> Bundle:
    """The bundle of a character with these fields; `templates` are texts by name."""
    source = yaml.safe_dump({"id": name, "name": name.title(), **fields}, allow_unicode=True)
    files = {CHARACTER_FILE: source.encode()}
    files |= {f"templates/{key}.yaml": text.encode() for key, text in templates.items()}
    return Bundle(name=name, files=files)


def characters_of(*bundles: Bundle) -> Characters:
    """All of them at once."""
    return Characters.of(CharacterVersion.of(bundle) for bundle in bundles)
