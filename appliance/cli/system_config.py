"""The text of `/etc/appliance/appliance.toml`: every setting, with its default and what it means.

Names and defaults come from `config.py`, meanings from the table in docs/settings.md, so that nothing is
written twice. Pure, but for reading that table.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from appliance.cli.system_files import PROGRAM
from appliance.config import Config, toml_value

SETTINGS_DOC = Path(__file__).parents[2] / "docs" / "settings.md"
LINE_LETTERS = 110

_INTERNAL = frozenset({"paths.engine_name"})
"""What `engine_configs` sets, and no file."""

HEAD = """\
# The settings of this box. Server, engines, PostgreSQL and timers read this file when they start; no
# installation writes it again. A line that begins with # and a name shows the default, or an example
# where it says so: take the # away to change it. What is misspelt or out of range is refused by name.
#
# After a change:  appliance doctor
#                  appliance system install --execute     (it says when there is nothing to do)
#                  systemctl restart appliance.target
#
# Keys and passwords belong into /etc/appliance/credentials, not here: {docs}/operating.md
# The settings as a table: {docs}/settings.md
"""

EXAMPLE = "  # an example: it is not set"
"""Behind a setting that has no default to show."""


def config_text(values: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    """The file. `values` are written as set, by name (`model.path`); all else is shown as default."""
    lines = [HEAD.format(docs=_docs()).rstrip()]
    for section in msgspec.structs.fields(Config):
        lines += ["", f"[{section.name}]"]
        assert isinstance(section.type, type)
        for field in msgspec.structs.fields(section.type):
            name = f"{section.name}.{field.name}"
            if name not in _INTERNAL:
                lines += _setting(field, values.get(name), meanings.get(name))
    return "\n".join(lines) + "\n"


def read_meanings(table: Path = SETTINGS_DOC) -> dict[str, str]:
    """What each setting means, from the rows of the table; empty where there is no such document."""
    if not table.is_file():
        return {}
    found: dict[str, str] = {}
    for row in table.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
        if row.startswith("| `") and len(cells) >= 3:
            meaning = _plain(" | ".join(cells[2:]))
            for name in re.findall(r"`([a-z_]+\.[a-z_0-9]+)`", cells[0]):
                found.setdefault(name, meaning)
    return found


def _setting(
    field: msgspec.structs.FieldInfo, value: str | None, meaning: str | None
) -> Iterator[str]:
    if meaning is not None:
        yield from textwrap.wrap(meaning, LINE_LETTERS, initial_indent="# ", subsequent_indent="# ")
    if value is not None:
        yield f"{field.name} = {toml_value(value)}"
    elif field.default is None:
        (example,) = field.type.__metadata__[0].examples
        yield f"#{field.name} = {toml_value(example)}{EXAMPLE}"
    else:
        yield f"#{field.name} = {toml_value(field.default)}"


def _docs() -> Path:
    """Where the docs of the program that serves are found, whichever version that is."""
    folder, prefix = SETTINGS_DOC.parent, Path(sys.prefix)
    return PROGRAM / folder.relative_to(prefix) if folder.is_relative_to(prefix) else folder


def _plain(markdown: str) -> str:
    """Without links' targets and code marks: the file is read in an editor."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown).replace("`", "")
