"""Characters: YAML files of the operator, each with a name, a system text and a greeting.

Their text is public: shared by all tenants in the cache. It is data, never a template. Never: a
user's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from appliance.errors import ConfigError, NotFound

DEFAULT_CHARACTER = "assistant"
FILE_BYTES_MAX = 256 * 1024
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")


class Character(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One character. An empty `system` leaves the model's own default; `greeting` opens a chat.

    `suggestions` are messages that a reader may begin with.
    """

    id: str
    name: str
    description: str = ""
    system: str = ""
    greeting: str = ""
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Characters:
    """All characters of a folder, by id; there is always DEFAULT_CHARACTER."""

    by_id: Mapping[str, Character]

    @classmethod
    def load(cls, directory: Path) -> Characters:
        """Read every *.yaml file of a folder; raises ConfigError naming file and field."""
        found: dict[str, Character] = {}
        for path in sorted(directory.glob("*.yaml")):
            character = _read(path)
            if character.id in found:
                raise ConfigError(f"{path}: id: there is already a character {character.id!r}")
            found[character.id] = character
        if DEFAULT_CHARACTER not in found:
            raise ConfigError(f"{directory}: there is no character {DEFAULT_CHARACTER!r}")
        return cls(by_id=found)

    def get(self, character_id: str | None) -> Character:
        """One character, the default one for None; raises NotFound."""
        character = self.by_id.get(character_id or DEFAULT_CHARACTER)
        if character is None:
            raise NotFound(f"no character {character_id!r}", param="character")
        return character


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
