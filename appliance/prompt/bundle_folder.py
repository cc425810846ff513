"""Bundles in a folder that people edit and keep in git: reading them.

A character is a file `NAME.yaml`, with templates in the folder `templates` beside it, or a folder of its
own that holds a bundle's files as they are. Never: follows a link out of the folder, or a database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import ConfigError
from appliance.prompt.bundle import (
    BYTES_MAX,
    CHARACTER_FILE,
    FILES_MAX,
    TEMPLATES_FOLDER,
    Bundle,
)
from appliance.prompt.character_file import FILE_BYTES_MAX, read_character
from appliance.prompt.characters import (
    DEFAULT_CHARACTER,
    Characters,
    CharacterVersion,
    no_template,
)
from appliance.prompt.path_kind import PathKind, in_folder, not_one, path_kind
from appliance.prompt.templates.built_in import DEFAULT_TEMPLATE
from appliance.prompt.templates.source import from_folder, inside, read_file, read_source


def read_bundles(directory: Path) -> tuple[tuple[Path, Bundle], ...]:
    """(where it is, bundle) of every character of a folder, by id; hidden names are left out.

    Raises ConfigError for a folder that cannot be read and an id that is there twice, InvalidBundle
    and TemplateError naming file and field.
    """
    found: dict[str, tuple[Path, Bundle]] = {}
    for path in in_folder(directory):
        bundle = read_bundle(path)
        if bundle.name in found:
            raise ConfigError(f"{path}: id: there is already a character {bundle.name!r}")
        found[bundle.name] = (path, bundle)
    return tuple(found[name] for name in sorted(found))


def load_characters(directory: Path) -> Characters:
    """Every character of a folder, tried out; the default one is among them. Raises as `read_bundles`."""
    found = [CharacterVersion.of(b, origin=str(path)) for path, b in read_bundles(directory)]
    if DEFAULT_CHARACTER not in {version.character.id for version in found}:
        raise ConfigError(f"{directory}: there is no character {DEFAULT_CHARACTER!r}")
    return Characters.of(found)


def read_bundle(path: Path) -> Bundle:
    """The bundle of a character's file, or of its own folder. Raises as `read_bundles`, and ConfigError
    for what is neither."""
    kind = path_kind(path)
    if kind is not PathKind.CHARACTER:
        raise not_one(path, kind)
    return _read_own_folder(path) if path.is_dir() else _read_file_and_templates(path)


def _read_file_and_templates(path: Path) -> Bundle:
    source = _read(path, FILE_BYTES_MAX)
    character = read_character(source, str(path))
    files = {CHARACTER_FILE: source}
    folder = path.parent / TEMPLATES_FOLDER
    template = inside(folder, f"{character.template}.yaml")
    if template is not None and template.exists():
        text = read_file(template)
        read = read_source(text, str(template), from_folder(folder))
        for name, content in {f"{character.template}.yaml": text, **read.included}.items():
            files[TEMPLATES_FOLDER + name] = content.encode()
    elif character.template != DEFAULT_TEMPLATE:
        known = [TEMPLATES_FOLDER + found.name for found in folder.glob("*.yaml")]
        raise no_template(str(path), character.template, known)
    return Bundle(name=character.id, files=files)


def _read_own_folder(folder: Path) -> Bundle:
    files: dict[str, bytes] = {}
    left = BYTES_MAX
    for path in files_below(folder):
        if inside(folder, path) is None:
            raise ConfigError(f"{folder / path}: leads out of its folder")
        if len(files) == FILES_MAX:
            raise ConfigError(f"{folder}: more than {FILES_MAX} files")
        files[path] = _read(folder / path, left)
        left -= len(files[path])
    name = folder.resolve().name
    if CHARACTER_FILE in files:
        name = read_character(files[CHARACTER_FILE], str(folder / CHARACTER_FILE)).id
    return Bundle(name=name, files=files)


def files_below(folder: Path) -> Iterator[str]:
    """The files below a folder, relative and without hidden ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield (Path(place) / name).relative_to(folder).as_posix()


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: no regular file")
        with path.open("rb") as file:
            source = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(source) > bytes_max:
        raise ConfigError(f"{path}: larger than {bytes_max} bytes")
    return source
