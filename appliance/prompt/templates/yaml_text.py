"""YAML as nodes with lines, in which every plain scalar is text and nothing is shared.

Owns the reading of fields, with errors that name file, line and field. Never: what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from appliance.errors import TemplateError
from appliance.prompt.templates.budget import NESTING_MAX, PARTS_MAX
from appliance.prompt.templates.faults import Place
from appliance.prompt.templates.scalar_lines import lines_of, traced, traced_expression

_INTEGER = re.compile(r"[-+]?[0-9]{1,15}\Z")
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}\.[0-9]{1,15}\Z")

# The same grammar from libyaml where PyYAML was built with it: ten times faster.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextLoader(_BASE):  # type: ignore[misc]
    """`name: yes` is the text "yes"."""


_TextLoader.yaml_implicit_resolvers = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value of a mapping or an item of a list, with where it stands; `file` is all of its text."""

    node: yaml.Node
    name: str
    place: Place
    file: str

    def fault(self, sentence: str) -> TemplateError:
        """What is wrong with this field."""
        return self.place.fault(f"{self.name}: {sentence}")

    def text(self) -> str:
        """The scalar; raises TemplateError for a list or mapping."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.fault(f"expected a text, got a {_kind(self.node)}")
        return str(self.node.value)

    @property
    def is_block(self) -> bool:
        """Whether it is a text after `|` or `>`."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.style in ("|", ">")

    def code(self) -> tuple[str, Place]:
        """The scalar as Jinja's source, and its place, which knows the line of each line of the source;
        raises TemplateError as `text`."""
        source, node = self.text(), self.node
        assert isinstance(node, yaml.ScalarNode)
        if node.style == "|":
            # The lines of the file, from the one after the `|` on.
            return source, replace(self.place, line=self.place.line + 1)
        if node.start_mark.line == node.end_mark.line and "\n" not in source:
            return source, self.place
        source, lines = traced(source, lines_of(node, self.file))
        return source, replace(self.place, line=lines[0], lines=lines)

    def expression(self, start: int) -> tuple[str, Place]:
        """The same of an expression without braces, which begins at `start`."""
        source, node = self.text()[start:], self.node
        assert isinstance(node, yaml.ScalarNode)
        source, lines = traced_expression(source, lines_of(node, self.file)[start:])
        return source, replace(self.place, line=lines[0], lines=lines)

    def items(self) -> list[Field]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.fault(f"expected a list, got a {_kind(self.node)}")
        return [
            replace(self, node=node, name=f"{self.name}[{index}]", place=_at(self.place, node))
            for index, node in enumerate(self.node.value)
        ]

    def fields(self, allowed: Collection[str] | None = None) -> dict[str, Field]:
        """The fields of a mapping; raises TemplateError for one that is not allowed or there twice."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fault(f"expected a mapping, got a {_kind(self.node)}")
        found: dict[str, Field] = {}
        for key, node in self.node.value:
            place = _at(self.place, key)
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if allowed is not None and name not in allowed:
                known = ", ".join(sorted(allowed))
                raise place.fault(f"{self.name}: there is no key {name!r} (there are: {known})")
            if name in found:
                raise place.fault(f"{self.name}: {name!r} is there twice")
            found[name] = replace(self, node=node, name=name, place=_at(self.place, node))
        return found

    def texts(self) -> Any:
        """Plain data in which every scalar is a text."""
        return self._data(Field.text)

    def value(self) -> Any:
        """Plain data: plain scalars are read as JSON's, others and what is no such word are texts."""
        return self._data(Field._word)

    def _data(self, scalar: Callable[[Field], Any]) -> Any:
        if isinstance(self.node, yaml.SequenceNode):
            return [item._data(scalar) for item in self.items()]
        if isinstance(self.node, yaml.MappingNode):
            return {name: field._data(scalar) for name, field in self.fields().items()}
        return scalar(self)

    def _word(self) -> Any:
        text = self.text()
        assert isinstance(self.node, yaml.ScalarNode)
        if self.node.style:  # quoted, or a block
            return text
        if _INTEGER.match(text):
            return int(text)
        if _NUMBER.match(text):
            return float(text)
        return {"true": True, "false": False, "null": None}.get(text, text)

    def within(self, part: str) -> Field:
        """The same field as one of a part."""
        return replace(self, place=replace(self.place, part=part))


def documents(text: str, place: Place) -> list[Field]:
    """The YAML documents of a text that begins at `place`; raises TemplateError naming the line."""
    found: list[Field] = []
    try:
        for node in _nodes(text):
            _check_shape(node, place)
            found.append(Field(node=node, name="file", place=_at(place, node), file=text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = place.line if mark is None else mark.line + 1
        raise replace(place, line=line).fault(f"not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        said = f"not YAML: the character U+{error.character:04X} is not allowed"
        raise place.fault(said) from error
    except (UnicodeEncodeError, RecursionError) as error:
        raise place.fault(f"not YAML: {type(error).__name__}") from error
    return found


def _nodes(text: str) -> Iterator[yaml.Node]:
    loader = _TextLoader(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    finally:
        loader.dispose()


def _check_shape(root: yaml.Node, place: Place) -> None:
    """No node twice (an alias), no tag, no depth or number beyond the limits."""
    seen: set[int] = set()
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        here = _at(place, node)
        if id(node) in seen:
            raise here.fault("aliases (`*name`) are not allowed")
        seen.add(id(node))
        if depth > NESTING_MAX:
            raise here.fault(f"nested more than {NESTING_MAX} deep")
        if len(seen) > 8 * PARTS_MAX:
            raise here.fault(f"more than {8 * PARTS_MAX} values")
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag[18:] not in _TAGS:
            raise here.fault(f"the tag {node.tag!r} is not allowed")
        waiting += [(child, depth + 1) for child in _children(node)]


_TAGS = {"str", "seq", "map"}


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "text"
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"


def _at(place: Place, node: yaml.Node) -> Place:
    return replace(place, line=node.start_mark.line + 1)


def plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is plain data: texts, numbers, booleans, null, lists and mappings of them."""
    if value is None or isinstance(value, str | int | float | bool):
        return True
    if depth > NESTING_MAX:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and plain(v, depth + 1) for k, v in value.items())
    return isinstance(value, list | tuple) and all(plain(item, depth + 1) for item in value)
