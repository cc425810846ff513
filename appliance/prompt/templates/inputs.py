"""The variables of a template: type, owner, default and sample. Checks values before any code sees them.

Owns the front section. Never: how a value is written into a part (`compiling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from appliance.errors import TemplateError
from appliance.prompt.templates.faults import Place
from appliance.prompt.templates.yaml_text import Field, plain

HISTORY = "history"
"""The conversation's messages: no input, but the zone of that name."""

PERSONA_INPUTS = frozenset({"user", "persona"})
NOTE_INPUT = "note"
PRIVATE = PERSONA_INPUTS | {NOTE_INPUT, "pinned"}
"""Inputs that every conversation gives of its own user: never public in the cache."""

_FRONT = ("name", "description", "inputs")
_INPUT = ("type", "scope", "description", "default", "sample")


class Scope(IntEnum):
    """What a variable belongs to, and so how long it stays as it is and who may share its tokens."""

    CHARACTER = 0
    """The operator's own text, the same for all tenants: public in the cache."""

    CONVERSATION = 1
    """Fixed when a conversation begins: private to its tenant."""

    TURN = 2
    """May change with every turn: nothing after it is found in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One declared variable. `default` and `sample` are None where there is none."""

    name: str
    type: str
    scope: Scope
    default: Any
    sample: Any
    place: Place

    def checked(self, value: Any) -> Any:
        """The value; raises TemplateError, without quoting it, when it is not of the declared type."""
        if value is None and self.default is not None:
            return self.default
        if not isinstance(value, _TYPES[self.type]) or (
            isinstance(value, bool) and self.type == "number"
        ):
            raise self.fault(f"expected {self.type}, got {_said(value)}")
        if not plain(value):
            raise self.fault("expected texts, numbers, booleans, lists and mappings in it")
        return value

    def fault(self, sentence: str) -> TemplateError:
        """What is wrong with this variable or its value."""
        return self.place.fault(f"input `{self.name}`: {sentence}")


_TYPES: dict[str, Any] = {
    "text": str,
    "number": int | float,
    "boolean": bool,
    "list": list | tuple,
    "map": Mapping,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSection:
    """The front section of a template file."""

    name: str
    description: str = ""
    inputs: Mapping[str, Input] = field(default_factory=dict)

    def scope_of(self, names: frozenset[str]) -> Scope:
        """The widest scope among variables."""
        return max((self.inputs[name].scope for name in names), default=Scope.CHARACTER)

    def samples(self) -> dict[str, Any]:
        """Sample data of every input that has any; the default stands in for a missing sample."""
        given = {
            name: i.default if i.sample is None else i.sample for name, i in self.inputs.items()
        }
        return {name: value for name, value in given.items() if value is not None}


def read_front(document: Field, reserved: frozenset[str]) -> FrontSection:
    """The front section; `reserved` names cannot be inputs. Raises TemplateError naming the line."""
    fields = document.fields(_FRONT)
    if "name" not in fields or not fields["name"].text().strip():
        raise document.fault("a template needs a name")
    found: dict[str, Input] = {}
    if "inputs" in fields:
        for name, declared in fields["inputs"].fields().items():
            if not name.isidentifier() or name in reserved or name == HISTORY:
                raise declared.place.fault(f"input {name!r}: this cannot be a variable's name")
            found[name] = _input(name, declared)
    description = fields["description"].text() if "description" in fields else ""
    return FrontSection(name=fields["name"].text(), description=description, inputs=found)


def _input(name: str, declared: Field) -> Input:
    fields = declared.fields(_INPUT)
    type_ = fields["type"].text() if "type" in fields else "text"
    if type_ not in _TYPES:
        raise fields["type"].fault(f"{type_!r} is none of {', '.join(_TYPES)}")
    scope = fields["scope"].text() if "scope" in fields else "conversation"
    if scope.upper() not in Scope.__members__:
        raise fields["scope"].fault(f"{scope!r} is none of character, conversation, turn")
    if name in PRIVATE and Scope[scope.upper()] is Scope.CHARACTER:
        raise fields["scope"].fault(
            f"`{name}` is what a user has set: its scope is conversation or turn, never character"
        )
    made = Input(
        name=name,
        type=type_,
        scope=Scope[scope.upper()],
        default=_of_type(fields.get("default"), type_),
        sample=_of_type(fields.get("sample"), type_),
        place=declared.place,
    )
    for value in (made.default, made.sample):
        if value is not None:
            made.checked(value)
    return made


def _of_type(given: Field | None, type_: str) -> Any:
    """A text as it stands, whatever else it may look like."""
    if given is None:
        return None
    return given.text() if type_ == "text" else given.value()


def _said(value: object) -> str:
    for name, kinds in _TYPES.items():
        if isinstance(value, kinds) and not (name == "number" and isinstance(value, bool)):
            return name
    return "null" if value is None else f"an object ({type(value).__name__})"
