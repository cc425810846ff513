"""Jinja in one scalar of a template file, compiled: a text, a condition, or a list to go through.

Owns which variables a piece of code uses. Never: where its values come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Template as JinjaTemplate
from jinja2 import TemplateSyntaxError, meta, nodes
from jinja2.environment import TemplateExpression
from jinja2.runtime import Context, Undefined
from jinja2.utils import pass_context

from appliance.prompt.templates import frozen_macros
from appliance.prompt.templates.budget import Budget
from appliance.prompt.templates.faults import Place, said_of
from appliance.prompt.templates.guard import Guarded
from appliance.prompt.templates.yaml_text import Field

_ELSEWHERE = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)


class _Leaves(Guarded):
    """Jinja of a scalar: no other file, and only texts and numbers are written."""

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for node in source.find_all(_ELSEWHERE):
            raise TemplateSyntaxError(
                "another file is a part of its own: `include: FILE`", node.lineno
            )
        return super()._generate(source, *args, **kwargs)


@pass_context
def _written(context: Context, value: object) -> object:
    """What may be written into a text. Takes the context so that nothing is written while compiling."""
    if isinstance(value, str | int | float | Undefined):
        return value
    kind = "null" if value is None else type(value).__name__
    raise TypeError(f"a {kind} is written where a text belongs")


_ENVIRONMENT = _Leaves(
    finalize=_written, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A content."""

    place: Place
    names: frozenset[str]
    macros: frozenset[str]
    _plain: str | None
    _code: JinjaTemplate | None

    @classmethod
    def compile(cls, field: Field, *, goes_on: bool = False) -> Text:
        """The text in a scalar. The line end that closes a YAML block is no part of it, unless the text
        `goes_on` in another one. Raises TemplateError with the line of what does not compile."""
        source = field.text()
        if field.is_block and not goes_on:
            source = source.removesuffix("\n")
        place = Place(file=field.place.file, line=field.code_line, part=field.place.part)
        if "{{" not in source and "{%" not in source and "{#" not in source:
            none: frozenset[str] = frozenset()
            return cls(place=place, names=none, macros=none, _plain=source, _code=None)
        with said_of(place):
            used = meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
            code = _ENVIRONMENT.from_string(source)
        names, macros = _split(used)
        return cls(place=place, names=names, macros=macros, _plain=None, _code=code)

    def render(self, values: Mapping[str, Any], budget: Budget) -> str:
        """The text with the values; raises TemplateError."""
        if self._plain is not None:
            budget.write(len(self._plain))
            return self._plain
        assert self._code is not None
        with said_of(self.place, names=_listed(self.names)):
            return "".join(_counted(self._code.generate(values), budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A condition (`if`), or the list of a `for_each`."""

    place: Place
    names: frozenset[str]
    macros: frozenset[str]
    _code: TemplateExpression

    @classmethod
    def compile(cls, source: str, place: Place) -> Expression:
        """Raises TemplateError with the line of what does not compile."""
        if "{{" in source or "{%" in source:
            raise place.fault("an expression stands without braces: `if: persona`")
        with said_of(place):
            used = meta.find_undeclared_variables(_ENVIRONMENT.parse("{{ (" + source + ") }}"))
            code = _ENVIRONMENT.compile_expression(source, undefined_to_none=False)
        names, macros = _split(used)
        return cls(place=place, names=names, macros=macros, _code=code)

    def is_true(self, values: Mapping[str, Any]) -> bool:
        """The condition for these values; raises TemplateError."""
        with said_of(self.place, names=_listed(self.names)):
            return bool(self._code(values))

    def items(self, values: Mapping[str, Any]) -> list[Any]:
        """The list for these values; raises TemplateError when it is none."""
        with said_of(self.place, names=_listed(self.names)):
            found = self._code(values)
            if not isinstance(found, list | tuple):
                kind = "null" if found is None else type(found).__name__
                raise TypeError(f"for_each goes through a list, this is a {kind}")
            return list(found)


def _split(used: set[str]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(used - frozen_macros.NAMES), frozenset(used & frozen_macros.NAMES)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _counted(pieces: Iterator[str], budget: Budget) -> Iterator[str]:
    for piece in pieces:
        budget.write(len(piece))
        yield piece
