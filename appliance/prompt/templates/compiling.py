"""From a template's source to the compiled template: every key checked, every piece of code compiled.

Owns the rules of parts: roles, zones and their order, priorities. Never: values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from appliance.prompt.messages import ROLES, Role, Zone
from appliance.prompt.templates import frozen_macros
from appliance.prompt.templates.code import Expression, Text
from appliance.prompt.templates.inputs import HISTORY, FrontSection, Scope, read_front
from appliance.prompt.templates.source import (
    Source,
    from_folder,
    no_includes,
    read_file,
    read_source,
)
from appliance.prompt.templates.template import Loop, PartCode, Template
from appliance.prompt.templates.yaml_text import Field
from appliance.prompt.truncate import HISTORY_PRIORITY

PRIORITY_MAX = 1_000_000

_FOR_EACH = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s+in\s+(.+)\Z", re.DOTALL)
_RESERVED = frozen_macros.NAMES | {"loop", "range", "dict", "namespace", "joiner"}
_ZONES = tuple(Zone)


def load_template(path: Path) -> Template:
    """The template in a file; raises TemplateError naming file, line, part and variable."""
    return compile_template(read_source(read_file(path), str(path), from_folder(path.parent)))


def template_of(text: str, file: str) -> Template:
    """The template in a text that errors call `file`; it includes nothing."""
    return compile_template(read_source(text, file, no_includes))


def compile_template(source: Source) -> Template:
    """The compiled template of a source; raises TemplateError."""
    front = read_front(source.front, _RESERVED)
    parts = []
    before_history: int | None = None
    history_priority = HISTORY_PRIORITY
    zone = Zone.STATIC
    for fields in source.parts:
        previous, zone = zone, _zone(fields, zone)
        if _ZONES.index(zone) < _ZONES.index(previous):
            raise fields["name"].fault(
                f"zone {zone.value} comes before zone {previous.value}: the order is {_order()}"
            )
        if zone is not Zone.HISTORY:
            parts.append(_part(fields, zone, front))
            continue
        if before_history is not None:
            raise fields["name"].fault(f"there is one part of zone {HISTORY}")
        history_priority = _history_priority(fields)
        before_history = len(parts)
    if before_history is None:
        raise source.front.fault(
            f"there is no part of zone {HISTORY}: add `- {{name: {HISTORY}, zone: {HISTORY}}}` where "
            "the conversation's messages belong"
        )
    _check_names(parts)
    _check_blocks(source, before_history)
    return Template(
        file=source.file,
        front=front,
        before=tuple(parts[:before_history]),
        after=tuple(parts[before_history:]),
        version=source.version,
        history_priority=history_priority,
    )


def _order() -> str:
    return ", ".join(zone.value for zone in _ZONES)


def _zone(fields: dict[str, Field], default: Zone) -> Zone:
    """A part without a zone is in that of the part before it."""
    if "zone" not in fields:
        return default
    name = fields["zone"].text()
    for zone in _ZONES:
        if zone.value == name:
            return zone
    raise fields["zone"].fault(f"{name!r} is none of {_order()}")


def _history_priority(fields: dict[str, Field]) -> int:
    for key in fields:
        if key not in ("name", "zone", "truncation_priority"):
            raise fields[key].fault(
                f"the part of zone {HISTORY} is the place of the conversation's messages and has "
                "a truncation_priority and nothing else; parts after it are of zone volatile"
            )
    if "truncation_priority" not in fields:
        return HISTORY_PRIORITY
    priority = _priority(fields)
    if priority == 0:
        raise fields["truncation_priority"].fault(
            "a conversation grows, so its oldest messages must be allowed to go: 1 or more"
        )
    return priority


def _check_names(parts: Sequence[PartCode]) -> None:
    """What was cut and what broke a prefix is told by the names of parts."""
    known: dict[str, PartCode] = {}
    for part in parts:
        if part.name in known:
            raise part.place.fault(f"two parts are called {part.name!r}; give each its own name")
        known[part.name] = part
    for part in parts:
        looped = known.get(part.name.rpartition(" ")[0])
        if looped is not None and looped.writes(part.name):
            raise part.place.fault(
                f"{part.name!r} is also what the loop of {looped.name!r} calls a part"
            )


def _check_blocks(source: Source, before_history: int) -> None:
    """The parts of a block are next to each other, with one priority and one loop."""
    parts = [fields for fields in source.parts if not _is_history(fields)]
    seen: set[str] = set()
    for index, fields in enumerate(parts):
        if "block" not in fields:
            continue
        block = fields["block"].text().strip()
        if not block:
            raise fields["block"].fault("a block needs a name")
        above = parts[index - 1] if index not in (0, before_history) else {}
        if "block" not in above or above["block"].text().strip() != block:
            if block in seen:
                raise fields["block"].fault(
                    f"the parts of block {block!r} do not stand next to each other"
                )
            seen.add(block)
            continue
        for key in ("truncation_priority", "for_each"):
            if _written(fields, key) != _written(above, key):
                raise fields["block"].fault(
                    f"the parts of block {block!r} are written and dropped together, so they have "
                    f"the same {key}"
                )


def _is_history(fields: dict[str, Field]) -> bool:
    return "zone" in fields and fields["zone"].text() == HISTORY


def _written(fields: dict[str, Field], key: str) -> str | None:
    return fields[key].text().strip() if key in fields else None


def _part(fields: dict[str, Field], zone: Zone, front: FrontSection) -> PartCode:
    loop = _loop(fields["for_each"], front) if "for_each" in fields else None
    condition = None
    if "if" in fields:
        condition = Expression.compile(fields["if"])
    texts = _texts(fields)
    own = frozenset() if loop is None else frozenset({loop.name, "loop"})
    codes: list[Text | Expression] = [text for _, text in texts]
    codes += [] if condition is None else [condition]
    names = frozenset[str]()
    for code in codes:
        _check_declared(code, front, own)
        names |= code.names - own
    if loop is not None:
        names |= loop.items.names
        codes.append(loop.items)
    scope = front.scope_of(names)
    if any(code.macros for code in codes):
        scope = max(scope, Scope.CONVERSATION)
    return PartCode(
        name=fields["name"].text(),
        role=_role(fields, zone),
        truncation_priority=_priority(fields),
        zone=zone,
        scope=scope,
        names=names,
        condition=condition,
        loop=loop,
        texts=texts,
        block=fields["block"].text().strip() if "block" in fields else None,
        place=fields["name"].place,
    )


def _check_declared(code: Text | Expression, front: FrontSection, own: Iterable[str] = ()) -> None:
    for name in sorted(code.names - front.inputs.keys() - frozenset(own)):
        if name == "loop":
            raise code.place.fault("`loop` is known within a part with `for_each`")
        known = ", ".join(sorted(front.inputs)) or "none"
        raise code.place.fault(
            f"variable `{name}` is not declared in the front section (inputs: {known})"
        )


def _loop(field: Field, front: FrontSection) -> Loop:
    match = _FOR_EACH.match(field.text())
    if match is None:
        raise field.fault("expected `NAME in LIST`")
    name = match[1]
    if name in front.inputs or name in _RESERVED:
        raise field.fault(f"`{name}` already names something else")
    items = Expression.compile(field, match.start(2))
    _check_declared(items, front)
    return Loop(name=name, items=items)


def _texts(fields: dict[str, Field]) -> tuple[tuple[str | None, Text], ...]:
    if ("content" in fields) == ("sections" in fields):
        raise fields["name"].fault("a part has either `content` or `sections`")
    if "content" in fields:
        return ((None, Text.compile(fields["content"])),)
    found: list[tuple[str | None, Text]] = []
    items = fields["sections"].items()
    for item in items:
        keys = item.fields(("name", "content", "truncation_priority"))
        if "truncation_priority" in keys:
            raise keys["truncation_priority"].fault(
                "a section is not cut on its own; make it a part"
            )
        if "name" not in keys or "content" not in keys:
            raise item.fault("a section has a name and a content")
        text = Text.compile(keys["content"], goes_on=item is not items[-1])
        found.append((keys["name"].text(), text))
    if not found:
        raise fields["sections"].fault("there are no sections")
    return tuple(found)


def _role(fields: dict[str, Field], zone: Zone) -> Role:
    if "role" not in fields:
        raise fields["name"].fault(f"a part needs a role ({', '.join(ROLES)})")
    role = fields["role"].text()
    if role not in ROLES:
        raise fields["role"].fault(
            f"{role!r} is none of {', '.join(ROLES)}; a role is written, never computed"
        )
    if zone is Zone.VOLATILE and role != "system":
        # A user's text after the newest message would be answered in its place.
        raise fields["role"].fault("a part after the history has the role system")
    return role


def _priority(fields: dict[str, Field]) -> int:
    if "truncation_priority" not in fields:
        return 0
    field = fields["truncation_priority"]
    text = field.text()
    if not (text.isascii() and text.isdigit() and int(text) <= PRIORITY_MAX):
        raise field.fault(f"expected a whole number from 0 to {PRIORITY_MAX}")
    return int(text)
