"""Writes bundles to a folder that people edit and keep in git. What is to be done is decided first.

Owns what may be written over: what a version has. Never: follows a link, or removes a file that no
version knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from appliance.errors import ConfigError
from appliance.prompt.bundle import CHARACTER_FILE, Bundle
from appliance.prompt.bundle_folder import files_below
from appliance.prompt.path_kind import is_character


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How a bundle gets into `directory`: `files` by their paths below it, so that `place` holds it.

    `edited`: what stands there with a content that no version has, and would be lost. `stale`: files of
    versions that the bundle lacks; they are removed. `unknown`: files of nobody's, which stay.
    """

    directory: Path
    place: Path
    files: Mapping[str, bytes]
    edited: tuple[Path, ...]
    stale: tuple[Path, ...]
    unknown: tuple[Path, ...]


def plan_writing(directory: Path, bundle: Bundle, versions: Iterable[Bundle]) -> Writing:
    """What writing a bundle so that `read_bundles` gives it back would do: one file becomes `NAME.yaml`,
    more a folder `NAME`. Of its `versions` no more are asked for than it takes to know what is there.

    Raises ConfigError when the character stands there in the other form, the folder is none of a
    character, or one of the places is a link: what that leads to is not touched.
    """
    file, folder = directory / f"{bundle.name}.yaml", directory / bundle.name
    is_file = set(bundle.files) == {CHARACTER_FILE}
    place, other = (file, folder) if is_file else (folder, file)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: no folder")
    if other.exists():
        raise ConfigError(f"{other}: it would be there beside {place}; remove or move one of them")
    if not is_file and place.exists() and not is_character(place):
        raise ConfigError(f"{place}: it is there, and is no character's folder")
    places = {path: file if is_file else folder / path for path in bundle.files}
    for at in places.values():
        _check_links(directory, at)
    there = {path: at for path, at in places.items() if at.exists()}
    if not is_file:
        there |= {path: folder / path for path in files_below(folder)}
    unlike = {
        path
        for path, at in there.items()
        if path not in bundle.files or not _holds(at, bundle.files[path])
    }
    edited, known = _compared(unlike, there, versions)
    gone = unlike - bundle.files.keys()
    return Writing(
        directory=directory,
        place=place,
        files={
            str(places[path].relative_to(directory)): bundle.files[path] for path in bundle.files
        },
        edited=_sorted(there, edited - (gone - known)),
        stale=_sorted(there, gone & known),
        unknown=_sorted(there, gone - known),
    )


def write(writing: Writing) -> None:
    """Do it, whatever was edited. Raises ConfigError for a place that cannot be written."""
    writing.directory.mkdir(parents=True, exist_ok=True)
    for path, content in writing.files.items():
        _write(writing.directory, path, content)
    for place in writing.stale:
        place.unlink()


def _compared(
    unlike: set[str], there: Mapping[str, Path], versions: Iterable[Bundle]
) -> tuple[set[str], set[str]]:
    """(those whose content no version has, those whose path one has)."""
    edited, known = set(unlike), set[str]()
    if not edited:
        return edited, known
    for version in versions:
        has = unlike & version.files.keys()
        known |= has
        edited -= {path for path in has if _holds(there[path], version.files[path])}
        if not edited:
            break
    return edited, known


def _holds(place: Path, content: bytes) -> bool:
    """Whether a file has this content; what is no file has none, and a larger one is not read."""
    with suppress(OSError):
        state = place.lstat()
        is_alike = S_ISREG(state.st_mode) and state.st_size == len(content)
        return is_alike and place.read_bytes() == content
    return False


def _check_links(directory: Path, place: Path) -> None:
    """A link on the way is named before anything is written. Below a folder `_write` looks again."""
    while place != directory:
        if place.is_symlink():
            raise _link(place)
        place = place.parent


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


def _sorted(there: Mapping[str, Path], paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(there[path] for path in sorted(paths))


def _link(place: Path) -> ConfigError:
    return ConfigError(f"{place}: it is a link, and none is followed; remove it")
