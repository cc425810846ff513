"""A bundle: all files of one character as one value, and the hash that names it.

Owns the limits on files and the canonical form that is hashed. Never: what a file means, or a folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from appliance.errors import InvalidBundle

FILES_MAX = 64
"""Files of one bundle."""

BYTES_MAX = 16 * 1024 * 1024
"""Bytes of all files of a bundle together."""

PATH_BYTES_MAX = 200
"""Bytes of a file's path in UTF-8."""

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
NAME_WORDS = "1 to 64 of a-z 0-9 _ -"
"""Names of bundles, which are the ids of their characters."""

CHARACTER_FILE = "character.yaml"
TEMPLATES_FOLDER = "templates/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of a character by path, relative and in the order of their paths as bytes.

    A file `character.yaml` or `card.json` says who it is; templates, with all that they include, are
    below `templates/`. Raises InvalidBundle naming the bundle, the file and the limit.
    """

    name: str
    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.files:
            raise InvalidBundle(f"{self.name}: there are no files")
        if len(self.files) > FILES_MAX:
            raise InvalidBundle(
                f"{self.name}: {len(self.files)} files, at most {FILES_MAX} are allowed"
            )
        for path in self.files:
            _check_path(self.name, path)
            _check_folders(self.name, path, self.files)
        size = sum(len(content) for content in self.files.values())
        if size > BYTES_MAX:
            raise InvalidBundle(
                f"{self.name}: {size} bytes in all files, at most {BYTES_MAX} are allowed"
            )
        files = {path: bytes(self.files[path]) for path in sorted(self.files, key=str.encode)}
        object.__setattr__(self, "files", MappingProxyType(files))

    @property
    def version(self) -> str:
        """SHA-256 in hex of the name, then of each file its path and its content.

        Each piece stands after its length in bytes, 8 bytes little-endian, so that no two bundles have
        the same form: changes with every byte of any file, and with nothing else.
        """
        digest = hashlib.sha256()
        for piece in (self.name.encode(), *self._pieces()):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
        return digest.hexdigest()

    def _pieces(self) -> list[bytes]:
        return [piece for path, content in self.files.items() for piece in (path.encode(), content)]

    def text(self, path: str) -> str:
        """A file as text; raises InvalidBundle when it is missing or no UTF-8."""
        content = self.files.get(path)
        if content is None:
            raise InvalidBundle(f"{self.name}: there is no file {path!r}")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidBundle(f"{self.name}: {path}: not UTF-8: {error.reason}") from error


def _check_name(name: str) -> None:
    if NAME.match(name) is None:
        raise InvalidBundle(f"id: {name!r} is not {NAME_WORDS}", param="id")


def _check_path(name: str, path: str) -> None:
    """A path stays below its folder on every system, is printable, and hides nothing: `.git/config` in an
    exported folder would be run."""
    parts = path.split("/")
    if (
        not path.isprintable()
        or "\\" in path
        or ":" in path
        or any(not part or part.startswith(".") for part in parts)
    ):
        raise InvalidBundle(f"{name}: {path!r} is no path of a file in a folder")
    if len(path.encode()) > PATH_BYTES_MAX:
        raise InvalidBundle(f"{name}: {path!r} is longer than {PATH_BYTES_MAX} bytes")


def _check_folders(name: str, path: str, files: Mapping[str, bytes]) -> None:
    """No file is a folder of another: such a bundle could not be written."""
    parts = path.split("/")
    for end in range(1, len(parts)):
        folder = "/".join(parts[:end])
        if folder in files:
            raise InvalidBundle(f"{name}: {folder!r} is a file, and a folder of {path!r}")
