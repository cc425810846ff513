"""A template file as it is written: front section, then parts, some of them in files that it includes.

Owns reading, limits on files, and that no include leaves the template's folder. Never: Jinja.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from appliance.errors import TemplateError
from appliance.prompt.templates.budget import NESTING_MAX, PARTS_MAX, SOURCE_CHARS_MAX
from appliance.prompt.templates.faults import Place
from appliance.prompt.templates.yaml_text import Field, documents

PART_KEYS = (
    "name",
    "role",
    "content",
    "sections",
    "truncation_priority",
    "zone",
    "if",
    "for_each",
    "block",
)

Includes: TypeAlias = Callable[[str], str | None]
"""The text of the included file of a name; None when the name leads nowhere. May raise TemplateError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The front section and the parts' fields, those of included files in their places.

    `included` are the texts of included files by name. `version` is the hash of all text, theirs as well.
    """

    file: str
    front: Field
    parts: tuple[dict[str, Field], ...]
    included: Mapping[str, str]
    version: str


def read_file(path: Path) -> str:
    """A template file's text; raises TemplateError naming the file."""
    here = Place(file=str(path), line=1)
    if path.exists() and not path.is_file():
        raise here.fault("no regular file")
    try:
        with path.open("rb") as file:
            raw = file.read(4 * SOURCE_CHARS_MAX + 1)
    except OSError as error:
        raise here.fault(f"cannot be read: {error.strerror}") from error
    return decoded(raw, str(path))


def decoded(raw: bytes, file: str) -> str:
    """The text of a template file that errors call `file`; raises TemplateError."""
    here = Place(file=file, line=1)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise here.fault(f"not UTF-8: {error.reason}") from error
    if len(text) > SOURCE_CHARS_MAX:
        raise here.fault(f"a template has at most {SOURCE_CHARS_MAX} characters")
    return text


def inside(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder; None when the name leads out of it, through links as well."""
    if not name or "\0" in name:
        return None
    root = folder.resolve()
    path = (root / name).resolve()
    return path if path.is_relative_to(root) and path != root else None


def from_folder(folder: Path) -> Includes:
    """Includes that are files of a folder."""

    def read(name: str) -> str | None:
        path = inside(folder, name)
        return None if path is None else read_file(path)

    return read


def no_includes(_: str) -> None:
    """Includes of a template that has no files beside it."""


def read_source(text: str, file: str, includes: Includes) -> Source:
    """The source in `text`, which errors call `file`.

    Raises TemplateError naming file, line and field.
    """
    here = Place(file=file, line=1)
    found = documents(text, here)
    if len(found) != 2:
        raise here.fault(
            "a template is a front section and, after a line `---`, the list of its parts; "
            f"this file has {len(found)} YAML documents"
        )
    front, parts = found
    included: dict[str, str] = {}
    fields = _parts(parts, includes, (), included)
    return Source(
        file=file,
        front=front,
        parts=tuple(fields),
        included=included,
        version=version_of({"": text, **included}),
    )


def version_of(texts: Mapping[str, str]) -> str:
    """The SHA-256 of a template's files by name, hex: it changes with any of their texts."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        for piece in (name.encode(), text.encode("utf-8", errors="surrogatepass")):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def _parts(
    listed: Field, includes: Includes, above: tuple[str, ...], included: dict[str, str]
) -> list[dict[str, Field]]:
    found: list[dict[str, Field]] = []
    for item in listed.items():
        fields = item.fields(("include",)) if _is_include(item) else item.fields(PART_KEYS)
        if "include" in fields:
            found += _included(fields["include"], includes, above, included)
            continue
        if "name" not in fields or not fields["name"].text().strip():
            raise item.fault("a part needs a name")
        name = fields["name"].text()
        found.append({key: field.within(name) for key, field in fields.items()})
        if len(found) > PARTS_MAX:
            raise item.fault(f"more than {PARTS_MAX} parts")
    return found


def _is_include(item: Field) -> bool:
    return "include" in item.fields((*PART_KEYS, "include"))


def _included(
    field: Field, includes: Includes, above: tuple[str, ...], included: dict[str, str]
) -> list[dict[str, Field]]:
    name = posixpath.normpath(field.text()) if field.text() else ""
    if name in above or len(above) >= NESTING_MAX:
        raise field.fault(f"{name!r} is included within itself, or more than {NESTING_MAX} deep")
    try:
        text = includes(name)
    except TemplateError as error:
        raise field.fault(error.message) from error
    if text is None:
        raise field.fault(f"{name!r} is not in the template's folder")
    included[name] = text
    found = documents(text, Place(file=name, line=1))
    if len(found) != 1:
        raise field.fault(f"{name!r}: an included file is one list of parts")
    return _parts(found[0], includes, (*above, name), included)
