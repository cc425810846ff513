"""Characters: YAML files of the operator, each with a name, a system text and a greeting.

Their text is public: shared by all tenants in the cache. It is data that a template writes, never a
template itself. Never: a user's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from appliance.errors import ConfigError, NotFound, TemplateError
from appliance.prompt.templates.library import DEFAULT_TEMPLATE, built_in, load_templates
from appliance.prompt.templates.lint import SAMPLE
from appliance.prompt.templates.template import Template

DEFAULT_CHARACTER = "assistant"
FILE_BYTES_MAX = 256 * 1024
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")


class Character(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One character. An empty `system` leaves the model's own default; `greeting` opens a chat.

    `suggestions` are messages that a reader may begin with. `template` is the name of the one that
    the prompts of its conversations are made with.
    """

    id: str
    name: str
    description: str = ""
    system: str = ""
    greeting: str = ""
    suggestions: tuple[str, ...] = ()
    template: str = DEFAULT_TEMPLATE

    def values(self) -> Mapping[str, Any]:
        """What templates know of it, as `character`."""
        shown = ("id", "name", "description", "system")
        return {"character": {name: getattr(self, name) for name in shown}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Characters:
    """All characters of a folder, by id; there is always DEFAULT_CHARACTER."""

    by_id: Mapping[str, Character]
    templates: Mapping[str, Template] = field(default_factory=built_in)

    @classmethod
    def load(cls, directory: Path) -> Characters:
        """Read every *.yaml file of a folder and the templates in its folder `templates`.

        Raises ConfigError naming file and field.
        """
        templates = load_templates(directory / "templates")
        found: dict[str, Character] = {}
        for path in sorted(directory.glob("*.yaml")):
            character = _read(path)
            if character.id in found:
                raise ConfigError(f"{path}: id: there is already a character {character.id!r}")
            _try_out(path, character, templates)
            found[character.id] = character
        if DEFAULT_CHARACTER not in found:
            raise ConfigError(f"{directory}: there is no character {DEFAULT_CHARACTER!r}")
        return cls(by_id=found, templates=templates)

    def get(self, character_id: str | None) -> Character:
        """One character, the default one for None; raises NotFound."""
        character = self.by_id.get(character_id or DEFAULT_CHARACTER)
        if character is None:
            raise NotFound(f"no character {character_id!r}", param="character")
        return character

    def template_of(self, character: Character) -> Template:
        """The template of one of these characters."""
        return self.templates[character.template]


def _try_out(path: Path, character: Character, templates: Mapping[str, Template]) -> None:
    """A character whose prompt cannot be made is refused at the start, not in its first chat."""
    template = templates.get(character.template)
    if template is None:
        known = ", ".join(sorted(templates))
        raise ConfigError(
            f"{path}: template: there is no {character.template!r} (there are: {known})"
        )
    try:
        template.render(character.values(), SAMPLE)
    except TemplateError as error:
        raise ConfigError(f"{path}: template: {error.message}") from error


def _read(path: Path) -> Character:
    try:
        with path.open("rb") as file:
            source = file.read(FILE_BYTES_MAX + 1)
        if len(source) > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        document = yaml.load(source, Loader=_PlainLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    try:
        character = msgspec.convert(document, Character)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    _check(path, character)
    return character


def _check(path: Path, character: Character) -> None:
    if _ID.match(character.id) is None:
        raise ConfigError(f"{path}: id: {character.id!r} is not 1 to 64 of a-z 0-9 _ -")
    if not character.name.strip():
        raise ConfigError(f"{path}: name: is empty")


class _PlainLoader(yaml.SafeLoader):
    """YAML in which every plain scalar is text (`name: yes` is "yes"), and nothing is shared."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)


_PlainLoader.yaml_implicit_resolvers = {}
