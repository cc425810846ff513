"""Compatibility mode: Prompt Poet's whole-file templates (`*.yml.j2`), made safe.

Jinja runs over the file with stand-ins for all values, the result is parsed as YAML, and the values are
put in afterwards, as the text they are. Differs from Prompt Poet where that is unsafe: a value cannot
make a part, a key, a name or a priority; white space of values is kept; what is missing is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template as JinjaTemplate

from appliance.prompt.messages import ROLES, Role, Zone
from appliance.prompt.templates.budget import PARTS_MAX, Budget, LimitExceeded, budget, current
from appliance.prompt.templates.faults import Place, said_of
from appliance.prompt.templates.inputs import Scope
from appliance.prompt.templates.parts import RenderedPart, RenderedSection
from appliance.prompt.templates.placeholders import Placeholders, placeholders
from appliance.prompt.templates.source import read_file
from appliance.prompt.templates.text_size import text_of
from appliance.prompt.templates.whole_file import WholeFile
from appliance.prompt.templates.yaml_text import Field, documents

POET_SUFFIXES = (".j2", ".jinja2")
"""File names of whole-file templates; every other file is one of our own kind."""

RESERVED = frozenset({"token_limit", "escape_special_characters"})
"""Variables that every template of this kind has."""

_KEYS = (
    "name",
    "role",
    "content",
    "truncation_priority",
    "sections",
    "expected_template_data_keys",
)
_SECTION_KEYS = ("name", "content")
_PRIORITY = re.compile(r"-?[0-9]{1,9}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoetTemplate:
    """A compiled whole-file template."""

    file: str
    _environment: WholeFile
    _code: JinjaTemplate

    @classmethod
    def load(cls, path: Path) -> PoetTemplate:
        """The template in a file, with what it includes from its folder; raises TemplateError."""
        return cls.compile(read_file(path), str(path), path.parent)

    @classmethod
    def compile(cls, text: str, file: str, folder: Path | None = None) -> PoetTemplate:
        """The template in a text that errors call `file`; raises TemplateError."""
        with said_of(Place(file=file, line=1)):
            environment = WholeFile(folder)
            return cls(file=file, _environment=environment, _code=environment.from_string(text))

    def render(
        self, values: Mapping[str, Any], *, token_limit: int = -1
    ) -> tuple[RenderedPart, ...]:
        """The parts for these values: data, objects with attributes, functions. Copies none of them.

        Raises TemplateError for a template or a value that gives no parts; quotes no value.
        """
        here = Place(file=self.file, line=1)
        taken = sorted(RESERVED & values.keys())
        if taken:
            raise here.fault(f"{taken[0]!r} is a variable of its own and cannot be given")
        given = {**values, "token_limit": token_limit, "escape_special_characters": _as_it_is}
        with budget() as left, placeholders(self._environment.space) as held:
            with said_of(here):
                pieces = []
                for piece in self._code.generate(given):
                    left.write(len(piece))
                    pieces.append(piece)
            return tuple(_Reader(self.file, held, given, left).parts("".join(pieces)))


def _as_it_is(text: object) -> str:
    """Prompt Poet's escaping function: here no value needs any."""
    return text_of(text, current())


class _Reader:
    def __init__(
        self, file: str, held: Placeholders, given: Mapping[str, Any], left: Budget
    ) -> None:
        self._place = Place(file=f"{file} (rendered)", line=1)
        self._held = held
        self._given = given
        self._left = left

    def parts(self, text: str) -> list[RenderedPart]:
        found = documents(text, self._place)
        items = found[0].items() if found else []
        if len(found) > 1 or not items:
            raise self._place.fault("it renders to no list of parts")
        if len(items) > PARTS_MAX:
            raise self._place.fault(f"more than {PARTS_MAX} parts")
        return [self._part(item) for item in items]

    def _part(self, item: Field) -> RenderedPart:
        fields = item.fields(_KEYS)
        if "name" not in fields:
            raise item.fault("a part needs a name")
        name = self._name(fields["name"])
        fields = {key: field.within(name) for key, field in fields.items()}
        if ("content" in fields) == ("sections" in fields):
            raise fields["name"].fault("a part has either `content` or `sections`")
        self._check_expected(fields)
        sections = self._sections(fields["sections"]) if "sections" in fields else ()
        if "content" in fields:
            written = fields["content"].text()
        else:
            written = "".join(written for _, written in sections)
        return RenderedPart(
            name=name,
            role=self._role(fields),
            content=self._filled(written.strip(), item.place),
            truncation_priority=self._priority(fields),
            zone=Zone.HISTORY,
            scope=Scope.TURN,
            sections=tuple(
                RenderedSection(name=name, content=self._filled(written, item.place))
                for name, written in sections
            ),
        )

    def _name(self, field: Field) -> str:
        text = field.text()
        for value in self._held.values_in(text):
            if not isinstance(value, int):
                raise field.fault("only a number may be written into a name")
        return self._filled(text, field.place)

    def _role(self, fields: Mapping[str, Field]) -> Role:
        if "role" not in fields:
            return "user"
        field = fields["role"]
        text = field.text()
        role = self._filled(text, field.place)
        for known in ROLES:
            if role == known and (role == text or known != "system"):
                return known
        said = "written" if role == text else "a variable's"
        raise field.fault(
            f"a role is one of {', '.join(ROLES)}, and system only where the template says so; "
            f"this {said} one is not"
        )

    def _priority(self, fields: Mapping[str, Field]) -> int:
        if "truncation_priority" not in fields:
            return 0
        field = fields["truncation_priority"]
        text = field.text()
        if self._held.values_in(text) or _PRIORITY.match(text) is None:
            raise field.fault("expected a whole number, written and not computed")
        # Prompt Poet never drops a part of priority 0 or below.
        return max(int(text), 0)

    def _sections(self, field: Field) -> tuple[tuple[str, str], ...]:
        found = []
        for item in field.items():
            keys = item.fields(_SECTION_KEYS)
            if len(keys) != len(_SECTION_KEYS):
                raise item.fault("a section has a name and a content")
            # Line ends part sections from each other, so only spaces go.
            found.append((self._name(keys["name"]), keys["content"].text().strip(" \t")))
        if not found:
            raise field.fault("there are no sections")
        return tuple(found)

    def _check_expected(self, fields: Mapping[str, Field]) -> None:
        if "expected_template_data_keys" not in fields:
            return
        for item in fields["expected_template_data_keys"].items():
            if item.text() not in self._given:
                raise item.fault(f"the variable `{item.text()}` is expected and not given")

    def _filled(self, written: str, place: Place) -> str:
        """The author's text, with its escapes read as Prompt Poet reads them, then the values."""
        text = written.replace("\\n", "\n").replace("\\r", "\r")
        try:
            return self._held.filled(text, self._left)
        except LimitExceeded as error:
            raise place.fault(str(error)) from error
        except ValueError as error:
            raise place.fault(
                "it changes what a macro wrote; use `{{ macro() }}` as it is"
            ) from error
