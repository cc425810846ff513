"""What is wrong with a field of a file that people write, in their words. Pure.

The checks are msgspec's; its sentences speak of types of a program. Never: checks anything.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import get_type_hints

import msgspec

_TYPES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*)`, got `(.*)`")
_CHOICE = re.compile(r"Invalid enum value (.*)")


def field_fault(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """`field: what is wrong with it`, for a mapping that was to become a `kind`."""
    sentence, _, place = str(error).partition(" - at `$")
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    where = place.strip("`.")
    if found := _UNKNOWN.fullmatch(sentence):
        return f"{found[1]}: there is no such field (fields: {', '.join(names)})"
    if found := _MISSING.fullmatch(sentence):
        return f"{found[1]}: is missing"
    if found := _EXPECTED.fullmatch(sentence):
        said = f"expected {_type(found[1])}, got {_type(found[2])}"
    elif (found := _CHOICE.fullmatch(sentence)) and (choices := _choices(kind, where)):
        said = f"{found[1]} is none of {', '.join(choices)}"
    else:
        said = sentence
    return f"{where}: {said}" if where else said


def _type(name: str) -> str:
    return " or ".join(_TYPES.get(one, one) for one in name.split(" | "))


def _choices(kind: type[msgspec.Struct], field: str) -> tuple[str, ...]:
    hint = get_type_hints(kind).get(field)
    if not isinstance(hint, type) or not issubclass(hint, Enum):
        return ()
    return tuple(str(choice.value) for choice in hint)
