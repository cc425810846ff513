"""Bundles in a folder that people edit and keep in git: reading them and writing them.

A character is a file `NAME.yaml`, with templates in the folder `templates` beside it, or a folder of its
own that holds a bundle's files as they are. Never: follows a link out of the folder, or a database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
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
from appliance.prompt.templates.built_in import DEFAULT_TEMPLATE
from appliance.prompt.templates.source import from_folder, inside, read_file, read_source

IDENTIFYING = (CHARACTER_FILE, "card.json")
"""A folder with one of these files is a character."""


def read_bundles(directory: Path) -> tuple[tuple[Path, Bundle], ...]:
    """(where it is, bundle) of every character of a folder, by id; hidden names are left out.

    Raises ConfigError for a folder that cannot be read and an id that is there twice, InvalidBundle
    and TemplateError naming file and field.
    """
    found: dict[str, tuple[Path, Bundle]] = {}
    for path in _characters(directory):
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
    """The bundle of a character's file, or of its own folder. Raises as `read_bundles`."""
    return _read_own_folder(path) if path.is_dir() else _read_file_and_templates(path)


def write_bundle(directory: Path, bundle: Bundle) -> Path:
    """Write a bundle so that `read_bundles` gives it back; returns where it is.

    One file becomes `NAME.yaml`, more a folder `NAME`, of which files that the bundle lacks are removed.
    Raises ConfigError when the character stands there in the other form, the folder is none of a
    character, or one of the places is a link: what that leads to is not touched.
    """
    file, folder = directory / f"{bundle.name}.yaml", directory / bundle.name
    is_file = set(bundle.files) == {CHARACTER_FILE}
    place, other = (file, folder) if is_file else (folder, file)
    if other.exists():
        raise ConfigError(f"{other}: it would be there beside {place}; remove or move one of them")
    directory.mkdir(parents=True, exist_ok=True)
    if is_file:
        _write(directory, file.name, bundle.files[CHARACTER_FILE])
        return file
    stale = set()
    if folder.exists():
        if folder.is_symlink():
            raise _link(folder)
        if not _is_character(folder):
            raise ConfigError(f"{folder}: it is there, and is no character's folder")
        stale = set(_read_own_folder(folder).files) - set(bundle.files)
    for path, content in bundle.files.items():
        _write(directory, f"{bundle.name}/{path}", content)
    for path in stale:
        (folder / path).unlink()
    return folder


def _characters(directory: Path) -> Iterator[Path]:
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error
    for path in entries:
        if path.name.startswith("."):
            continue
        if path.suffix == ".yaml" or (path.is_dir() and _is_character(path)):
            yield path


def _is_character(folder: Path) -> bool:
    return any((folder / name).is_file() for name in IDENTIFYING)


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
    for path in _files(folder):
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


def _files(folder: Path) -> Iterator[str]:
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


def _write(directory: Path, path: str, content: bytes) -> None:
    """Write a file below a folder. Each step is taken from the folder before, so that no link is
    followed, also not one that is put there meanwhile."""
    *folders, name = path.split("/")
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    place = directory
    try:
        for folder in folders:
            place /= folder
            with suppress(FileExistsError):
                os.mkdir(folder, dir_fd=at)
            below = _opened(folder, os.O_RDONLY | os.O_DIRECTORY, at, place)
            os.close(at)
            at = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(_opened(name, flags, at, place / name), "wb") as file:
            file.write(content)
    finally:
        os.close(at)


def _opened(name: str, flags: int, at: int, place: Path) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)
    except OSError as error:
        if place.is_symlink():
            raise _link(place) from error
        raise ConfigError(f"{place}: cannot be written: {error.strerror}") from error


def _link(place: Path) -> ConfigError:
    return ConfigError(f"{place}: it is a link, and none is followed; remove it")
