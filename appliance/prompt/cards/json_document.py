"""The JSON of a card: a stranger's text to an object, within limits. Never: what a field means."""

from __future__ import annotations

import json
import math
from typing import Any

from appliance.errors import InvalidCard

JSON_BYTES_MAX = 4 * 1024 * 1024
VALUES_MAX = 400_000
"""Separators and brackets: what decides how much memory the parsed document takes."""

DEPTH_MAX = 64
_BOM = b"\xef\xbb\xbf"


def parse_document(
    data: bytes, where: str, *, bytes_max: int = JSON_BYTES_MAX
) -> tuple[str, dict[str, Any]]:
    """The text and the object in it; a byte order mark is dropped.

    Raises InvalidCard naming `where` for anything else: too large, not UTF-8, not JSON, nested deeper
    than DEPTH_MAX, a name twice in one object (readers would differ in which they take), a number
    beyond a double's range.
    """
    if len(data) > bytes_max:
        raise InvalidCard(
            f"{where}: the JSON has {len(data)} bytes, the limit is {bytes_max}", param=where
        )
    data = data.removeprefix(_BOM)
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUES_MAX:
        raise InvalidCard(f"{where}: the JSON has more than {VALUES_MAX} values", param=where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidCard(f"{where}: not UTF-8 at byte {error.start}", param=where) from error
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float
        )
    except _Twice as error:
        raise InvalidCard(
            f"{where}: the name {error} stands twice in one object", param=where
        ) from error
    except RecursionError as error:
        raise _too_deep(where) from error
    except ValueError as error:
        raise InvalidCard(f"{where}: not JSON: {_sentence(error)}", param=where) from error
    if not isinstance(value, dict):
        raise InvalidCard(f"{where}: expected a JSON object", param=where)
    _check_depth(value, where)
    return text, value


def written(document: dict[str, Any]) -> str:
    """An object as JSON text; characters stay as they are, but for halves of surrogate pairs."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text


class _Twice(ValueError):
    """One name twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(repr(name)[:80])
        found[name] = value
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _check_depth(value: Any, where: str) -> None:
    """Level by level: no recursion, and each value is looked at once."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            below += [child for child in children if isinstance(child, dict | list)]
        if not below:
            return
        level = below
    raise _too_deep(where)


def _too_deep(where: str) -> InvalidCard:
    return InvalidCard(f"{where}: nested deeper than {DEPTH_MAX} levels", param=where)


def _sentence(error: ValueError) -> str:
    return str(error).splitlines()[0][:120]
