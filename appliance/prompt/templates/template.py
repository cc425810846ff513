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
from appliance.prompt.templates.frozen_macros import Beginning
from appliance.prompt.templates.inputs import FrontSection, Scope
from appliance.prompt.templates.parts import Rendered, RenderedPart, RenderedSection, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`for_each: NAME in LIST`."""

    name: str
    items: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCode:
    """One part of a template. `texts` are its content, or its sections with their names.

    Parts of one `block` stand next to each other and have one priority and one loop.
    """

    name: str
    role: Role
    truncation_priority: int
    zone: Zone
    scope: Scope
    names: frozenset[str]
    condition: Expression | None
    loop: Loop | None
    texts: tuple[tuple[str | None, Text], ...]
    block: str | None
    place: Place

    def writes(self, name: str) -> bool:
        """Whether a rendered part of this name is of it: in a loop they are numbered."""
        if self.loop is None:
            return name == self.name
        begin, _, number = name.rpartition(" ")
        return begin == self.name and number.isdecimal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template. `version` is the hash of all of its text, that of included files as well."""

    file: str
    front: FrontSection
    before: tuple[PartCode, ...]
    after: tuple[PartCode, ...]
    version: str
    history_priority: int

    @property
    def parts(self) -> tuple[PartCode, ...]:
        """All parts in order, without the place of the conversation's messages."""
        return self.before + self.after

    @property
    def names(self) -> frozenset[str]:
        """The variables that the parts use."""
        return frozenset().union(*(part.names for part in self.parts))

    def render(self, values: Mapping[str, Any], frozen: Beginning) -> Rendered:
        """The parts with these values, which may be callables that give a value.

        Only what the template uses is looked at or called, each once. Raises TemplateError for a
        value that is missing or of another type, and for code that fails or goes past the limits.
        """
        given = self._values(values)
        with budget() as left:
            before = tuple(_rendered(self.before, given, frozen, left))
            after = tuple(_rendered(self.after, given, frozen, left))
        return Rendered(
            before=before,
            after=after,
            history_priority=self.history_priority,
            variables={name: digest_of(value) for name, value in given.items()},
        )

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
    parts: tuple[PartCode, ...], values: Mapping[str, Any], frozen: Beginning, left: Budget
) -> Iterator[RenderedPart]:
    made = 0
    for part, number, own in _rounds(parts, values, frozen):
        name = part.name if number is None else f"{part.name} {number}"
        bound = {**values, **frozen.macros(name), **own}
        left.tick()
        if part.condition is not None and not part.condition.is_true(bound):
            continue
        made += 1
        if made > PARTS_MAX:
            raise part.place.fault(f"more than {PARTS_MAX} parts")
        texts = [(section, text.render(bound, left)) for section, text in part.texts]
        block = part.block
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
            block=block if number is None or block is None else f"{block} {number}",
            variables=part.names,
        )


def _rounds(
    parts: tuple[PartCode, ...], values: Mapping[str, Any], frozen: Beginning
) -> Iterator[tuple[PartCode, int | None, Mapping[str, Any]]]:
    """Each time a part is written: the part, its number in a `for_each`, the loop's variables.

    The parts of a block with a loop are written together, once for each item.
    """
    at = 0
    while at < len(parts):
        first = parts[at]
        end = at + 1
        while first.block is not None and end < len(parts) and parts[end].block == first.block:
            end += 1
        if first.loop is None:
            for part in parts[at:end]:
                yield part, None, {}
        else:
            items = first.loop.items.items({**values, **frozen.macros(first.name)})
            for index, item in enumerate(items):
                own = {first.loop.name: item, "loop": _loop(index, len(items))}
                for part in parts[at:end]:
                    yield part, index + 1, own
        at = end


def _loop(index: int, length: int) -> Mapping[str, Any]:
    return {
        "index": index + 1,
        "index0": index,
        "first": index == 0,
        "last": index == length - 1,
        "length": length,
    }
