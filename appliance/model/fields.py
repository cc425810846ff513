"""Values out of JSON files, each checked once, with file and field in every message. Never: tensors.

A field that is null counts as absent, as `transformers` treats it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from appliance.errors import ModelError

JSON_BYTES_MAX = 64 * 2**20
SHOWN_CHARS_MAX = 100
DIMENSION_MAX = 2**24
"""No width, count or vocabulary of a real model comes near; products of two stay below 2**48."""


def shown(value: object) -> str:
    """A value from outside as one short line of a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises ModelError that names the file and what is wrong with it."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        if path.stat().st_size > JSON_BYTES_MAX:
            raise ModelError(f"{path}: larger than {JSON_BYTES_MAX >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if content.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path}: is a Git LFS pointer, not the file itself: run `git lfs pull`")
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error


class Fields:
    """The fields of one JSON object; `source` names the file. All methods raise ModelError."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self._fields = fields
        self.source = source

    def get(self, name: str) -> Any:
        """The value as it is, None when absent."""
        return self._fields.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there, null or not."""
        return name in self._fields

    def over(self, below: Fields, *names: str) -> Fields:
        """These fields, with those of `below` where the named ones are absent here."""
        missing = {n: below.get(n) for n in names if n not in self._fields and below.has(n)}
        return Fields({**self._fields, **missing}, self.source)

    def count(self, name: str, *, default: int | None = None, limit: int = DIMENSION_MAX) -> int:
        """A whole number from 1 to `limit`."""
        value = self._value(name, default)
        if type(value) is not int or not 1 <= value <= limit:
            raise ModelError(
                f"{self.source}: {name} is {shown(value)}, not a whole number from 1 to {limit}"
            )
        return value

    def optional_count(self, name: str) -> int | None:
        """A whole number from 1 to `DIMENSION_MAX`, or None."""
        return None if self.get(name) is None else self.count(name)

    def positive(self, name: str, *, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(name, default)
        if not _is_number(value) or not (math.isfinite(value) and value > 0):
            raise ModelError(f"{self.source}: {name} is {shown(value)}, not a positive number")
        return float(value)

    def optional_positive(self, name: str) -> float | None:
        """A finite number above zero, or None."""
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.source}: {name} is {shown(value)}, not true or false")
        return value

    def part(self, name: str) -> Fields | None:
        """An object inside, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.source}: {name} is not an object")
        return Fields(value, self.source)

    def names(self) -> frozenset[str]:
        """The names of the fields that are not null."""
        return frozenset(name for name, value in self._fields.items() if value is not None)

    def refuse(self, *names: str) -> None:
        """None of these fields is set: each would change the arithmetic and is not implemented."""
        for name in names:
            if self.get(name):
                raise ModelError(f"{self.source}: {name} {shown(self.get(name))} is not supported")

    def _value(self, name: str, default: Any) -> Any:
        value = self._fields.get(name)
        return default if value is None else value


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)
