"""YAML as plain values; a key that stands twice is refused, not passed over. Never: what it means."""

from __future__ import annotations

from typing import Any

import yaml


def plain_yaml(text: bytes | str) -> Any:
    """The one document of a file. Raises YAMLError, with the line where it is known."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader: plain values, and no object of Python's
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What the loader makes of a tag's value: `!!int ''`, `!!timestamp x`, a day that no month has.
        raise yaml.YAMLError(f"a value is not what it is written as ({error})") from error


class _Loader(yaml.SafeLoader):
    """Refuses the second of two values, instead of taking it without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping of plain values."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
