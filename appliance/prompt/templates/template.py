"""A compiled template: parsed once, immutable, rendered with the values of a conversation.

User data cannot make structure: names, roles, priorities, zones and the parts themselves are read
from the file before any value is known. Never: token ids, or the conversation's own messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.prompt.messages import Role, Zone
from appliance.prompt.templates.budget import PARTS_MAX, Budget, budget
from appliance.prompt.templates.code import Expression, Text
from appliance.prompt.templates.faults import Place, said_of
from appliance.prompt.templates.frozen_macros import Frozen
from appliance.prompt.templates.inputs import Front, Scope
from appliance.prompt.templates.parts import Rendered, RenderedPart, RenderedSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`for_each: NAME in LIST`."""

    name: str
    items: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCode:
    """One part of a template. `texts` are its content, or its sections with their names."""

    name: str
    role: Role
    truncation_priority: int
    zone: Zone
    scope: Scope
    names: frozenset[str]
    condition: Expression | None
    loop: Loop | None
    texts: tuple[tuple[str | None, Text], ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template. `version` is the hash of all of its text, that of included files as well."""

    file: str
    front: Front
    before: tuple[PartCode, ...]
    after: tuple[PartCode, ...]
    version: str

    @property
    def parts(self) -> tuple[PartCode, ...]:
        """All parts in order, without the place of the conversation's messages."""
        return self.before + self.after

    @property
    def names(self) -> frozenset[str]:
        """The variables that the parts use."""
        return frozenset().union(*(part.names for part in self.parts))

    def render(self, values: Mapping[str, Any], frozen: Frozen) -> Rendered:
        """The parts with these values, which may be callables that give a value.

        Only what the template uses is looked at or called, each once. Raises TemplateError for a
        value that is missing or of another type, and for code that fails or goes past the limits.
        """
        given = self._values(values)
        with budget() as left:
            before = tuple(_rendered(self.before, given, frozen, left))
            after = tuple(_rendered(self.after, given, frozen, left))
        return Rendered(before=before, after=after)

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in sorted(self.names):
            declared = self.front.inputs[name]
            value = values.get(name)
            if callable(value):
                with said_of(declared.place, names=f"`{name}`"):
                    value = value()
            if value is None and declared.default is None:
                raise declared.fault("it has no value and no default")
            found[name] = declared.checked(value)
        return found


def _rendered(
    parts: tuple[PartCode, ...], values: Mapping[str, Any], frozen: Frozen, left: Budget
) -> Iterator[RenderedPart]:
    made = 0
    for part in parts:
        for name, bound in _rounds(part, values, frozen):
            left.tick()
            if part.condition is not None and not part.condition.is_true(bound):
                continue
            made += 1
            if made > PARTS_MAX:
                raise part.place.fault(f"more than {PARTS_MAX} parts")
            texts = [(section, text.render(bound, left)) for section, text in part.texts]
            yield RenderedPart(
                name=name,
                role=part.role,
                content="".join(text for _, text in texts),
                truncation_priority=part.truncation_priority,
                zone=part.zone,
                scope=part.scope,
                sections=tuple(
                    RenderedSection(name=section, content=text)
                    for section, text in texts
                    if section is not None
                ),
            )


def _rounds(
    part: PartCode, values: Mapping[str, Any], frozen: Frozen
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, variables) of each time a part is written; in a `for_each` the name is numbered."""
    if part.loop is None:
        yield part.name, {**values, **frozen.macros(part.name)}
        return
    items = part.loop.items.items({**values, **frozen.macros(part.name)})
    for index, item in enumerate(items):
        name = f"{part.name} {index + 1}"
        loop = {
            "index": index + 1,
            "index0": index,
            "first": index == 0,
            "last": index == len(items) - 1,
            "length": len(items),
        }
        yield name, {**values, **frozen.macros(name), part.loop.name: item, "loop": loop}
