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
from appliance.prompt.templates.pieces import Pieces, Variable, pieces_of
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


def _writable(value: object) -> object:
    """What may be written into a text, as it is; raises TypeError."""
    if isinstance(value, str | int | float | Undefined):
        return value
    kind = "null" if value is None else type(value).__name__
    raise TypeError(f"a {kind} is written where a text belongs")


@pass_context
def _finalize(context: Context, value: object) -> object:
    """Takes the context so that nothing is written while compiling."""
    return _writable(value)


_ENVIRONMENT = _Leaves(
    finalize=_finalize, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)

_RESERVED = frozen_macros.NAMES | frozenset(_ENVIRONMENT.globals)
"""Names that are no values of inputs, or not alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A content."""

    place: Place
    names: frozenset[str]
    macros: frozenset[str]
    _written: Pieces | JinjaTemplate

    @classmethod
    def compile(cls, field: Field, *, goes_on: bool = False) -> Text:
        """The text in a scalar. The line end that closes a YAML block is no part of it, unless the text
        `goes_on` in another one. Raises TemplateError with the line of what does not compile."""
        source, place = field.text(), field.place
        none: frozenset[str] = frozenset()
        has_code = "{{" in source or "{%" in source or "{#" in source
        if has_code:
            source, place = field.code()
        if field.is_block and not goes_on:
            source = source.removesuffix("\n")
        if not has_code:
            return cls(place=place, names=none, macros=none, _written=(source,))
        with said_of(place):
            parsed = _ENVIRONMENT.parse(source)
            pieces = pieces_of(parsed, _RESERVED)
            if pieces is None:
                names, macros = _split(meta.find_undeclared_variables(parsed))
                code = _ENVIRONMENT.from_string(parsed)
                return cls(place=place, names=names, macros=macros, _written=code)
        names = frozenset(piece.name for piece in pieces if isinstance(piece, Variable))
        _ENVIRONMENT.know(names)
        return cls(place=place, names=names, macros=none, _written=pieces)

    def render(self, values: Mapping[str, Any], budget: Budget) -> str:
        """The text with the values; raises TemplateError."""
        names = _listed(self.names)
        if isinstance(self._written, JinjaTemplate):
            with said_of(self.place, names=names):
                return "".join(_counted(self._written.generate(values), budget))
        texts = []
        for piece in self._written:
            with said_of(self._at(piece), names=names):
                text = piece if isinstance(piece, str) else _text_of(piece.name, values)
                budget.write(len(text))
                texts.append(text)
        return "".join(texts)

    def _at(self, piece: str | Variable) -> Place:
        if isinstance(piece, str) or piece.line == 0:
            return self.place
        return self.place.at(piece.line + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A condition (`if`), or the list of a `for_each`."""

    place: Place
    names: frozenset[str]
    macros: frozenset[str]
    _code: TemplateExpression

    @classmethod
    def compile(cls, field: Field, start: int = 0) -> Expression:
        """The expression in a scalar from `start` on. Raises TemplateError with the line of what does not
        compile."""
        if "{{" in field.text() or "{%" in field.text():
            raise field.place.fault("an expression stands without braces: `if: persona`")
        source, place = field.expression(start)
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


def _text_of(name: str, values: Mapping[str, Any]) -> str:
    """A variable as Jinja writes it; raises UndefinedError and TypeError."""
    return str(_writable(values[name] if name in values else _ENVIRONMENT.undefined(name=name)))


def _split(used: set[str]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(used - frozen_macros.NAMES), frozenset(used & frozen_macros.NAMES)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _counted(pieces: Iterator[str], budget: Budget) -> Iterator[str]:
    for piece in pieces:
        budget.write(len(piece))
        yield piece
