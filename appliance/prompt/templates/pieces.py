"""A content that is texts and plain variables alone, `Hello, {{ name }}.`, written without Jinja's code.

Most contents are; compiling Python for one takes a millisecond, which a cold start pays for each part.
Owns which contents these are. Never: what a value may be (`code`), or any other expression.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

from jinja2 import nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A value written as it is; `line` counts from 0 at the begin of the content."""

    name: str
    line: int


Pieces: TypeAlias = tuple[str | Variable, ...]


def pieces_of(source: nodes.Template, reserved: Container[str]) -> Pieces | None:
    """The pieces of a parsed content in order; None where it is more, or uses a `reserved` name."""
    pieces: list[str | Variable] = []
    for output in source.body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                pieces.append(node.data)
            elif isinstance(node, nodes.Name) and node.name not in reserved:
                pieces.append(Variable(name=node.name, line=node.lineno - 1))
            else:
                return None
    return tuple(pieces)
