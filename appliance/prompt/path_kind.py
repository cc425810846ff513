"""What a person's path holds: a character, a template, a folder of characters, or something else by name.

Looks at names and first bytes alone. Never: whether a character or a template is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from appliance.errors import ConfigError
from appliance.prompt.bundle import CHARACTER_FILE
from appliance.prompt.character_file import FILE_BYTES_MAX
from appliance.prompt.templates.poet import POET_SUFFIXES

IDENTIFYING = (CHARACTER_FILE, "card.json")
"""A folder with one of these files is a character."""

CARDS_COME_IN = "cards are imported on the page or by POST /v1/characters (docs/characters.md)"

_NAMED_MAX = 20
_ARCHIVE = b"PK\x03\x04"
_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_ID_LINE = re.compile(r"^id:", re.MULTILINE)


class PathKind(Enum):
    """What a path may hold, as errors call it."""

    CHARACTER = "a character"
    TEMPLATE = "a template"
    WHOLE_FILE = "a template of Prompt Poet"
    FOLDER = "a folder of characters"


def path_kind(path: Path) -> PathKind:
    """What a path holds. Raises ConfigError naming what it is where it is none of these."""
    if path.is_dir():
        return PathKind.CHARACTER if is_character(path) else PathKind.FOLDER
    source = _beginning(path)
    if not source.strip():
        raise ConfigError(f"{path}: the file is empty")
    if path.name.endswith(POET_SUFFIXES):
        return PathKind.WHOLE_FILE
    if source.startswith(_IMAGES):
        raise ConfigError(f"{path}: an image; {CARDS_COME_IN}")
    if source.startswith(_ARCHIVE):
        raise ConfigError(f"{path}: an archive; {CARDS_COME_IN}")
    try:
        text = source.decode(
            "utf-8-sig", errors="strict" if len(source) < FILE_BYTES_MAX else "ignore"
        )
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8, so neither a character nor a template") from error
    if path.suffix == ".json" or _is_json(text):
        raise ConfigError(
            f"{path}: JSON, so neither a character's file nor a template (a file of a character's folder "
            f"is looked at with its folder); {CARDS_COME_IN}"
        )
    return PathKind.TEMPLATE if _is_template(text) else PathKind.CHARACTER


def in_folder(folder: Path) -> Iterator[Path]:
    """The files and folders of a folder of characters that hold one, or ought to, in the order of their
    names; hidden ones are left out. Raises ConfigError for a folder that cannot be read."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    for path in entries:
        if path.name.startswith("."):
            continue
        if path.suffix == ".yaml" or (path.is_dir() and is_character(path)):
            yield path


def is_character(folder: Path) -> bool:
    """Whether a folder is that of one character."""
    return any((folder / name).is_file() for name in IDENTIFYING)


def not_one(path: Path, kind: PathKind) -> ConfigError:
    """What is said where one character is expected, and a path holds something else."""
    if kind is not PathKind.FOLDER:
        return ConfigError(f"{path}: {kind.value}; a character's file or folder is expected")
    known = [str(found) for found in in_folder(path)]
    if not known:
        return no_characters(path)
    return ConfigError(f"{path}: {kind.value}; name one of them: {', '.join(known[:_NAMED_MAX])}")


def no_characters(folder: Path) -> ConfigError:
    """A folder that holds none, and what it should hold."""
    return ConfigError(
        f"{folder}: there are no characters here: neither NAME.yaml nor a folder with "
        f"{' or '.join(IDENTIFYING)}"
    )


def _beginning(path: Path) -> bytes:
    """As much of a file as a character's may have. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: no regular file")
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file or folder") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _is_template(text: str) -> bool:
    """A front section above a line `---`, or a list of parts, as files are that others include."""
    if _ID_LINE.search(text) is not None:
        return False
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return bool(lines) and (lines[0].startswith("-") or "---" in map(str.rstrip, lines))


def _is_json(text: str) -> bool:
    """An object that no YAML file of a character is: those may be written as JSON, and have an `id`."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return "id" not in found
