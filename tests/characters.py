"""Characters for tests, made from bundles as the product makes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.bundle_writing import Writing, plan_writing, write
from appliance.prompt.characters import LOREBOOK_FILE, Characters, CharacterVersion


def bundle_of(name: str, /, *, templates: Mapping[str, str] = {}, **fields: object) -> Bundle:
    """The bundle of a character with these fields; `templates` are texts by name."""
    source = yaml.safe_dump({"id": name, "name": name.title(), **fields}, allow_unicode=True)
    files = {CHARACTER_FILE: source.encode()}
    files |= {f"templates/{key}.yaml": text.encode() for key, text in templates.items()}
    return Bundle(name=name, files=files)


def with_lore(bundle: Bundle, lorebook: Mapping[str, object]) -> Bundle:
    """The bundle with a lorebook."""
    files = {**bundle.files, LOREBOOK_FILE: json.dumps(lorebook).encode()}
    return Bundle(name=bundle.name, files=files)


def characters_of(*bundles: Bundle) -> Characters:
    """All of them at once."""
    return Characters.of(CharacterVersion.of(bundle) for bundle in bundles)


def written(folder: Path, bundle: Bundle, *versions: Bundle) -> Writing:
    """Write a bundle, whatever was edited; `versions` are what was published."""
    writing = plan_writing(folder, bundle, versions)
    write(writing)
    return writing
