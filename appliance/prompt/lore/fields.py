"""Reads the fields of strangers' JSON: tolerant of what editors really write, strict about sizes.

A number may be a text (also an empty one), a flag may be a number, a list of keys one text with commas.
Never: what a field means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.errors import InvalidRequest

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0", "null"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonObject:
    """A JSON object; `path` is what errors call it (`character_book.entries[3]`), with `title` if it has
    a name of its own. Every method raises InvalidRequest naming the field."""

    path: str
    members: Mapping[str, Any]
    title: str = ""

    @classmethod
    def of(cls, value: Any, path: str, *, title: str = "") -> JsonObject:
        """The value as an object; raises InvalidRequest when it is none."""
        if not isinstance(value, Mapping):
            raise refusal(path, title, "expected an object")
        return cls(path=path, members=value, title=title)

    def text(self, name: str, *, bytes_max: int) -> str:
        """A text, "" for null or nothing; a number is written as one."""
        value = self.members.get(name)
        if value is None:
            return ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise self.fault(name, "expected a text")
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise self.fault(name, "holds half of a character (a lone surrogate)") from error
        if size > bytes_max:
            raise self.fault(name, f"at most {bytes_max} bytes, this is {size}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number; None for null, nothing and a blank text."""
        value = self.members.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        found = as_number(value)
        if found is None:
            raise self.fault(name, "expected a number")
        return found

    def flag(self, name: str) -> bool | None:
        """A boolean; None for null, nothing and a blank text."""
        value = self.members.get(name)
        if isinstance(value, str):
            word = value.strip().lower()
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            value = None if not word else value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value != 0
        raise self.fault(name, "expected true or false")

    def texts(self, name: str, *, items_max: int, bytes_max: int) -> tuple[str, ...]:
        """A list of texts without blank ones; one text is split at its commas."""
        value = self.members.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, Sequence):
            raise self.fault(name, "expected a list of texts")
        if len(value) > items_max:
            raise self.fault(name, f"at most {items_max} of them, here are {len(value)}")
        held = {f"{name}[{index}]": item for index, item in enumerate(value)}
        items = JsonObject(path=self.path, members=held, title=self.title)
        read = (items.text(place, bytes_max=bytes_max) for place in held)
        return tuple(text.strip() for text in read if text.strip())

    def inner(self, name: str) -> JsonObject:
        """An object within; an empty one for null, or for a value of another kind, which says nothing."""
        value = self.members.get(name)
        members = value if isinstance(value, Mapping) else {}
        return JsonObject(path=f"{self.path}.{name}", members=members, title=self.title)

    def fault(self, name: str, sentence: str) -> InvalidRequest:
        """What is wrong with a field."""
        return refusal(f"{self.path}.{name}", self.title, sentence)


def refusal(path: str, title: str, sentence: str) -> InvalidRequest:
    """A field that cannot be taken."""
    named = f" ({title})" if title else ""
    return InvalidRequest(f"{path}{named}: {sentence}", param=path)


def as_number(value: Any) -> float | None:
    """A finite number, or the one that a text writes."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
